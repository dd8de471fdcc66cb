#pragma once

#include <string>
#include <vector>

#include "daemon/config/command_result.h"

namespace lockstep::daemon {

struct TraceMergeOptions {
  std::vector<std::string> sources;  ///< timelines, and folders of runs: all of theirs
  std::string out_file;
};

/// `lockstep trace merge`: one trace of several steps. Throws Error: kInputMissing for a file that
/// is not there or a folder without timelines, kBadData for one that is no timeline, as
/// files::write_atomically.
CommandResult trace_merge_command(const TraceMergeOptions& options);

}  // namespace lockstep::daemon
