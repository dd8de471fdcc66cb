#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "cli/tensor_commands.h"
#include "daemon/run/training_context.h"
#include "dist/communicator.h"
#include "dist/process_info.h"
#include "metrics/tensorboard/event_file.h"
#include "train/evaluator.h"

namespace lockstep::cli {

/// Network and data of a run file, used to evaluate checkpoints one after the other.
class EvaluatorJob {
 public:
  explicit EvaluatorJob(const EvalCommandOptions& options);

  const daemon::RunConfig& config() const { return config_; }
  std::filesystem::path saves_folder() const {
    return config_.checkpoint.folder(config_.run.project());
  }
  std::filesystem::path results_folder() const { return config_.run.project().eval(); }

  /// Returns the SHA-256 of the keys that decide the result: sections data and eval, and run.seed.
  std::string settings_sha256() const;

  /// Reads the checkpoint `prefix`, evaluates it and writes RUN/eval/step-<N>.json atomically.
  /// Returns a line for people. Returns nullopt and writes nothing if the checkpoint was removed or
  /// replaced meanwhile. Every byte that is used is verified by its checksum. `on_batch` is called
  /// before each batch.
  std::optional<std::string> evaluate(const std::string& prefix,
                                      const std::function<void()>& on_batch = {});

  /// Loss of one weight pruned alone, by level.
  struct PrunedAlone {
    std::string name;
    int64_t num_weights = 0;
    double sparsity = 0;  ///< of the checkpoint
    std::vector<double> losses;
  };
  struct Sensitivity {
    int64_t step = 0;
    double loss = 0;  ///< of the checkpoint
    std::vector<PrunedAlone> weights;
  };
  /// Reads the checkpoint and evaluates it with each prunable weight pruned to each level, the
  /// others as they are. The weights are those that evaluations use. Writes nothing.
  Sensitivity sensitivity(const std::string& prefix, const std::vector<double>& levels,
                          const std::function<void()>& on_batch);

 private:
  void open(const std::string& restored);
  void open_without_training_data(const std::string& restored, const Error& missing);
  void restore(const std::string& prefix);
  train::EvalResult evaluate_restored(const std::function<void()>& on_batch);
  double loss_of_restored(const std::function<void()>& on_batch);
  std::string write(const std::string& prefix, const std::string& index_sha256,
                    const train::EvalResult& result);

  daemon::RunConfig config_;
  flags::Frozen frozen_;  ///< the network and the data may read flags
  dist::SelfCommunicator control_;
  std::unique_ptr<dist::SelfCommunicator> device_comm_;  ///< carries the network's device
  std::unique_ptr<daemon::TrainingContext> context_;
  std::unique_ptr<train::Hook> callbacks_;  ///< for evaluations; null: none
  /// Curves of all evaluations of this process; nullopt with summary.tensorboard: false.
  std::optional<metrics::EventFile> curves_;
  int64_t step_ = 0;  ///< of the restored checkpoint
};

/// Returns the SHA-256 of a checkpoint's index file, which identifies it among those of its number.
/// nullopt if the file does not exist.
std::optional<std::string> index_sha256(const std::string& prefix);

}  // namespace lockstep::cli
