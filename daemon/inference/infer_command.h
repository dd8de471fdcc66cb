#pragma once

#include <string>
#include <vector>

#include "daemon/config/command_result.h"

namespace lockstep::daemon {

struct InferCommandOptions {
  std::string saved_model;         ///< folder of an export, or latest; exactly one of the two
  std::string checkpoint;          ///< prefix of a save, or latest
  std::string config_file;         ///< a run file or an inferer.json; empty: defaults
  std::vector<std::string> feeds;  ///< each as YAML: a section, a path, train, eval
};

/// `lockstep infer`: a trained network answers a feed, without the code that built it, in one
/// process on at most one device (docs/inference.md). Nothing is stored unless a callback does.
///
/// kStopped after SIGTERM, SIGINT, SIGHUP or SIGUSR1, once the callbacks' end() has run. Throws
/// Error: kUsage in a world of several processes; as load_infer_config(),
/// infer::open_saved_model(), open_checkpoint(), and what the feed and the callbacks throw.
CommandResult infer_command(const InferCommandOptions& options);

}  // namespace lockstep::daemon
