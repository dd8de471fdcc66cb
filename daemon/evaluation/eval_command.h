#pragma once

#include <string>
#include <vector>

#include "daemon/config/command_result.h"
#include "daemon/config/overrides.h"

namespace lockstep::daemon {

struct EvalCommandOptions {
  std::string config_file;  ///< the run file of the run whose saves are evaluated
  std::vector<Override> overrides;
  std::string restore = "latest";  ///< latest: of the run's folder; else the prefix of a save
  bool watch = false;  ///< evaluate each save of the run that there is and that follows, once
};

/// `lockstep eval`: the evaluation of saves as a job of its own, of one rank, beside the run or
/// after it. Any world size may have written them. What it finds goes to RUN/eval/step-<N>.json
/// and to the log (docs/evaluation.md).
///
/// With `watch`, a save counts as evaluated once its file is there, so that a watcher that was
/// killed goes on where it was; it ends when the run has ended (summary.json), and with
/// kInputMissing where the run's folder, its saves or the results are removed or renamed meanwhile.
/// A save that is removed or replaced while it is read is passed over; one that is damaged is told,
/// and the command ends with kBadData.
///
/// kStopped on SIGTERM, SIGINT, SIGHUP or SIGUSR1, before the next batch.
///
/// Throws Error: as load_run_config() and TrainingContext; kConfig without data.eval;
/// kInputMissing if there is no save; kBadData if the save is damaged or of another network;
/// kCannotCreate, kIo for results that cannot be written, or where another watcher is at work.
CommandResult eval_command(const EvalCommandOptions& options);

}  // namespace lockstep::daemon
