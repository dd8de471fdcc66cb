#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "daemon/evaluation/eval_command.h"
#include "daemon/run/training_context.h"
#include "dist/process_info.h"
#include "dist/self_communicator.h"
#include "metrics/tensorboard/event_file.h"
#include "train/evaluator.h"

namespace lockstep::daemon {

/// Network and data of a run file, to evaluate saves with, one after the other.
class EvaluatorJob {
 public:
  explicit EvaluatorJob(const EvalCommandOptions& options);

  const RunConfig& config() const { return config_; }
  std::filesystem::path saves_folder() const { return config_.run.project().checkpoints(); }
  std::filesystem::path results_folder() const { return config_.run.project().eval(); }

  /// Of the keys that say what is evaluated, and how: sections data and eval, and run.seed.
  std::string settings_sha256() const;

  /// Reads the save `prefix`, evaluates it and writes RUN/eval/step-<N>.json, in one piece; a line
  /// for people. Nothing if the save was removed or replaced meanwhile: then nothing is written.
  /// Every byte that is used was compared with its checksum. `on_batch` is called before each
  /// batch.
  std::optional<std::string> evaluate(const std::string& prefix,
                                      const std::function<void()>& on_batch = {});

 private:
  void open(const std::string& restored);
  void open_without_training_data(const std::string& restored, const Error& missing);
  void restore(const std::string& prefix);
  train::EvalResult evaluate_restored(const std::function<void()>& on_batch);
  std::string write(const std::string& prefix, const std::string& index_sha256,
                    const train::EvalResult& result);

  RunConfig config_;
  flags::Frozen frozen_;  ///< the network and the data may read them
  dist::ProcessInfo process_;
  dist::SelfCommunicator control_;
  std::unique_ptr<dist::SelfCommunicator> device_comm_;  ///< says where the network stands
  std::unique_ptr<TrainingContext> context_;
  std::unique_ptr<train::Hook> callbacks_;    ///< of the run file, for evaluations; null: none
  std::optional<metrics::EventFile> curves_;  ///< of all evaluations of this process; nothing with
                                              ///< summary.tensorboard: false
  int64_t step_ = 0;                          ///< of the save that was restored
};

/// Of the index file of a save: which save of that number it is. Nothing if it is not there.
std::optional<std::string> index_sha256(const std::string& prefix);

}  // namespace lockstep::daemon
