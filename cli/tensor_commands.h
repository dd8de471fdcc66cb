#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint/tools/gc.h"
#include "checkpoint/tools/inspect.h"
#include "cli/ctl_command.h"
#include "cli/launching.h"
#include "cli/scale_command.h"
#include "daemon/config/overrides.h"
#include "daemon/config/program.h"
#include "daemon/run/check.h"
#include "infer/exports/export.h"
#include "job_server/queue_client.h"

/// Commands of `lockstep` that need LibTorch, and their options.
namespace lockstep::daemon {

/// The command line of `lockstep doctor`.
struct DoctorOptions {
  int num_ranks = 0;    ///< 0: the hosts' slots, 2 without hosts
  std::string hosts;    ///< launch::parse_hosts(); empty: this host
  std::string program;  ///< command of each rank; empty: the lockstepd next to this program
};

/// Checks this host (cli/doctor_command.cpp), then starts ranks that check each other
/// (daemon/run/doctor.h). Prints results as they arrive. Exit code: 0, or 69 if a finding
/// prevents runs.
CommandResult doctor_command(const DoctorOptions& options);

/// Throws Error(kUsage) if a launcher has started several processes of this command. `why`: reason
/// against it.
void require_one_process(const char* command, const char* why);

struct EvalCommandOptions {
  std::string config_file;  ///< run file of the run whose checkpoints are evaluated
  AboveFile above;
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

namespace CLI {
class App;
}

namespace lockstep::daemon {

using Command = std::function<CommandResult()>;
using InspectSave = checkpoint::Answer (*)(const std::string& where,
                                           const checkpoint::InspectOptions& options);

/// Thrown by a command of TensorCommands that this program does not have.
struct NeedsTensors : std::logic_error {
  NeedsTensors() : std::logic_error("a command of TensorCommands is missing") {}
};

template <typename Result, typename... Arguments>
Result not_here(Arguments...) {
  throw NeedsTensors();
}

enum class Reference { kRunFile, kFlags, kMetrics };

/// Commands of `lockstep` that need LibTorch, which takes a quarter of a second to load. They read
/// a run file, whose tables contain networks and data sets, or checkpoints. The program `lockstep`
/// itself has none of them. For these commands it executes `lockstep-tensors`
/// (cli/tensors_main.cpp), which has all.
struct TensorCommands {
  CommandResult (*run)(const RunCommandOptions&) = not_here;
  CommandResult (*launch_slurm)(const SlurmCommandOptions&) = not_here;
  CommandResult (*launch_kubernetes)(const KubernetesCommandOptions&) = not_here;
  CommandResult (*doctor)(const DoctorOptions&) = not_here;
  CommandResult (*submit)(const SubmitOptions&) = not_here;
  ReadControl read_control = not_here;  ///< for `ctl` with a run file
  CommandResult (*check)(const std::string&, const std::vector<Override>&) = not_here;
  CommandResult (*plan)(const PlanOptions&) = not_here;
  CommandResult (*plan_scale)(const ScaleOptions&) = not_here;
  CommandResult (*curves)(const std::filesystem::path&, const std::string&) = not_here;
  CommandResult (*eval)(const EvalCommandOptions&) = not_here;
  CommandResult (*infer)(const InferCommandOptions&) = not_here;
  CommandResult (*reference)(Reference) = not_here;
  InspectSave list_saves = not_here, show_save = not_here;
  InspectSave verify_saves = not_here, latest_save = not_here;
  checkpoint::Answer (*diff_saves)(const std::string&, const std::string&,
                                   const checkpoint::DiffOptions&) = not_here;
  checkpoint::Answer (*collect_garbage)(const std::string&,
                                        const checkpoint::GcOptions&) = not_here;
  CommandResult (*export_save)(const ExportOptions&) = not_here;
};

}  // namespace lockstep::daemon
