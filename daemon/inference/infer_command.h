#pragma once

#include <string>
#include <vector>

#include "daemon/config/command_result.h"

namespace lockstep::daemon {

struct InferCommandOptions {
  std::string saved_model;         ///< folder of an export, or latest; exactly one of the two
  std::string checkpoint;          ///< prefix of a checkpoint, or latest
  std::string config_file;         ///< a run file or an inferer.json; empty: defaults
  std::vector<std::string> feeds;  ///< each as YAML: a section, a path, train, eval
};

/// `lockstep infer`: runs a trained network on a feed, in one process on at most one device
/// (docs/inference.md). Needs no code of the network. Callbacks decide whether results are stored.
///
/// Returns kStopped after SIGTERM, SIGINT, SIGHUP or SIGUSR1, once the callbacks' end() has run.
/// Throws Error(kUsage) in a world of several processes. Throws as load_infer_config(),
/// infer::open_saved_model() and open_checkpoint(), and what the feed and the callbacks throw.
CommandResult infer_command(const InferCommandOptions& options);

}  // namespace lockstep::daemon
