#pragma once

#include <string>
#include <vector>

#include "daemon/config/command_result.h"
#include "daemon/config/overrides.h"

namespace lockstep::daemon {

struct EvalCommandOptions {
  std::string config_file;  ///< run file of the run whose checkpoints are evaluated
  std::vector<Override> overrides;
  std::string restore = "latest";  ///< latest: the folder's newest; else a prefix
  bool watch = false;              ///< evaluate each existing and each later checkpoint once
};

/// `lockstep eval`: evaluates checkpoints in a separate job of one rank, during the run or after
/// it. The checkpoints may come from any world size. Results go to RUN/eval/step-<N>.json and to
/// the log (docs/evaluation.md).
///
/// With `watch`, a checkpoint counts as evaluated once its result file exists. So a watcher that
/// was killed resumes where it was. It ends when the run has ended (summary.json). It ends with
/// kInputMissing if the run's folder, its checkpoints or the results are removed or renamed
/// meanwhile. A checkpoint that is removed or replaced while it is read is skipped. A damaged one
/// is reported, and the command then ends with kBadData.
///
/// Returns kStopped on SIGTERM, SIGINT, SIGHUP or SIGUSR1, before the next batch.
///
/// Throws Error as load_run_config() and TrainingContext do. Other errors:
///   - kConfig without data.eval,
///   - kInputMissing if there is no checkpoint,
///   - kBadData if the checkpoint is damaged or of another network,
///   - kCannotCreate or kIo if results cannot be written, or another watcher is running.
CommandResult eval_command(const EvalCommandOptions& options);

}  // namespace lockstep::daemon
