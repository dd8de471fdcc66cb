#pragma once

#include <string>
#include <vector>

#include "daemon/config/estimator_flags.h"
#include "daemon/config/program.h"
#include "launch/ranks.h"

/// Commands of `lockstep` that need LibTorch and have no header of their own.
namespace lockstep::cli {

/// The command line of `lockstep doctor`.
struct DoctorOptions {
  int num_ranks = 0;    ///< 0: the hosts' slots, 2 without hosts
  std::string hosts;    ///< launch::parse_hosts(); empty: this host
  std::string program;  ///< command of each rank; empty: the lockstepd next to this program
};

/// Checks this host with `mpirun --version`, `srun --version`, `program --version` and
/// `nvidia-smi`. Then starts ranks that check each other (daemon/run/doctor.h). Prints results as
/// they arrive. Exit code: 0, or 69 if a finding prevents runs.
daemon::CommandResult doctor_command(const DoctorOptions& options);

/// Throws Error(kUsage) if a launcher has started several processes of this command. `why`: reason
/// against it.
void require_one_process(const char* command, const char* why);

struct EvalCommandOptions {
  std::string config_file;  ///< run file of the run whose checkpoints are evaluated
  daemon::AboveFile above;
  std::string restore = "latest";  ///< latest: the folder's newest; else a prefix
  bool watch = false;              ///< evaluate each existing and each later checkpoint once
};

/// `lockstep eval`: evaluates checkpoints in a separate job of one rank, during the run or after
/// it. The checkpoints may come from any world size. Results go to RUN/eval/step-<N>.json and to
/// the log (docs/evaluation.md).
///
/// With `watch`, a checkpoint counts as evaluated once its result file exists, so a killed watcher
/// resumes where it was. It ends when the run has ended (summary.json), or with kInputMissing if
/// the run's folder, its checkpoints or the results are removed or renamed. A checkpoint that is
/// removed or replaced while it is read is skipped. A damaged one is reported; the command then
/// ends with kBadData. Returns kStopped on SIGTERM, SIGINT, SIGHUP or SIGUSR1, before the next
/// batch.
///
/// Throws Error as load_run_config() and TrainingContext do. kConfig: data.eval is missing.
/// kInputMissing: there is no checkpoint. kBadData: it is damaged or of another network.
/// kCannotCreate, kIo: results cannot be written, or another watcher is running.
daemon::CommandResult eval_command(const EvalCommandOptions& options);

struct SensitivityOptions {
  EvalCommandOptions eval;                               ///< without watch
  std::vector<double> levels{0.5, 0.7, 0.8, 0.9, 0.95};  ///< sparsities, 0 < x < 1
  std::string json_file, svg_file;                       ///< empty: not written
};

/// `lockstep sensitivity`: loss on data.eval if one weight alone is pruned by magnitude, for each
/// prunable weight and each level, without training. Shows which layers allow more sparsity than
/// others. Prints a table; JSON and a chart on request. Throws as eval_command().
daemon::CommandResult sensitivity_command(const SensitivityOptions& options);

struct InferCommandOptions {
  std::string saved_model;         ///< folder of an export, ONNX file, or latest; or checkpoint
  std::string checkpoint;          ///< prefix of a checkpoint, or latest
  std::string config_file;         ///< a run file or an inferer.json; empty: defaults
  std::vector<std::string> feeds;  ///< each as YAML: a section, a path, train, eval
  std::string engine;              ///< overrides inferer.engine; empty: does not
  bool explain = false;            ///< append the engine's table of layers
};

/// `lockstep infer`: runs a trained network on a feed, in one process on at most one device
/// (docs/inference.md). Needs no code of the network. Callbacks decide whether results are stored.
///
/// Returns kStopped after SIGTERM, SIGINT, SIGHUP or SIGUSR1, once the callbacks' end() has run.
/// Throws Error(kUsage) in a world of several processes. Throws as load_infer_config(),
/// infer::open_saved_model() and open_checkpoint(), and what the feed and the callbacks throw.
daemon::CommandResult infer_command(const InferCommandOptions& options);

/// The command line of `lockstep compress`.
struct CompressOptions {
  std::string config_file;  ///< run file of the trained network
  daemon::AboveFile above;
  std::string checkpoint;  ///< folder or prefix; empty: the newest of the run
  double target = 0;       ///< pruned share of the weights, below 1; 0: prune nothing
  bool quantize = false;   ///< train for int8
  double epochs = 10;      ///< of the training that compresses
  std::string out_folder;  ///< empty: RUN/compressed
  launch::RanksOptions ranks;
};

/// `lockstep compress`: from a trained checkpoint to a small and fast network (docs/compress.md).
/// Writes a recipe and trains with it from the checkpoint's weights. Then exports both networks as
/// ONNX and prints a table of accuracy, size and latency by engine. Called again, it continues.
///
/// Throws Error(kUsage) if there is nothing to do. Throws Error(kCannotCreate) if the folder has
/// another recipe, Error(kConfig) without data.eval. Throws as run_command(), export_command() and
/// open_checkpoint(); what cannot be exported is refused before the training.
daemon::CommandResult compress_command(const CompressOptions& options);

}  // namespace lockstep::cli
