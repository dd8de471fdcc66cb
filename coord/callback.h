#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coord/data_map.h"

namespace lockstep::metrics {
class EventFile;
}

/// Base class of callbacks, with the information and services that a driver provides.
namespace lockstep::coord {

enum class Mode { kTrain, kEval, kInfer };

/// Returns "train", "eval" or "infer", for run files, logs and labels.
constexpr const char* mode_name(Mode mode) {
  return mode == Mode::kTrain ? "train" : mode == Mode::kEval ? "eval" : "infer";
}

/// Ranks on which a callback runs: rank 0 only, or every rank.
enum class RunOn { kRank0, kAll };

struct IterationInfo {
  int64_t epoch_number = 0;
  int64_t iteration_number = 0;    ///< from 0, in this mode
  double execution_time = 0;       ///< duration of the network's computation, in seconds
  bool is_last_iteration = false;  ///< true only in inference, where the feeder looks ahead
};

/// Information about the run for a callback; the driver updates it before each call.
struct CallbackContext {
  Mode mode = Mode::kTrain;
  /// Folder for results; with RunOn::kAll on several ranks one per rank (rank_000, ...).
  std::filesystem::path log_dir;
  metrics::EventFile* summary_writer = nullptr;  ///< writer for summaries; null in inference
  int64_t summary_step =
      0;  ///< the x axis: an epoch's last training and last evaluation step are equal
  std::optional<int64_t> number_iterations_per_epoch;  ///< nullopt if the feed has no known end
  IterationInfo iteration_info;
  int rank = 0;
  int world_size = 1;
  /// True in end() if a stop or an error ended the training, evaluation or inference before its
  /// last iteration. Values over the entire data set are then not available.
  bool is_broken_off = false;

  bool is_training() const { return mode == Mode::kTrain; }
};

/// Callback: user code around each iteration of training, evaluation or inference, for logging,
/// collecting, saving or metrics.
///
/// Call order: begin, then on_iteration_start and on_iteration_end for each iteration, then end. In
/// training on_epoch_end follows the last iteration of each epoch. If begin returned, end is also
/// called after a signal and, in inference, after an error. With several ranks it must then not
/// wait for other ranks. An exception ends the run on all ranks.
///
/// One thread at a time, chosen by the driver.
class Callback {
 public:
  virtual ~Callback() = default;

  /// Returns the keys that on_iteration_end reads. `_mask` means "mask", optional.
  virtual std::vector<std::string> incoming_keys() const { return {}; }
  /// Returns the keys of the returned map, `_x` as above. Other callbacks may read them.
  virtual std::vector<std::string> generated_keys() const { return {}; }
  virtual RunOn run_on() const { return RunOn::kRank0; }
  /// Returns the file or files in log_dir that it writes, as "statistics.json" or "*.tfrecord";
  /// empty: none. Two callbacks of one mode with the same files are refused (make_callbacks()).
  virtual std::string stores_as() const { return ""; }

  virtual void begin() {}
  virtual void on_iteration_start() {}
  /// Processes an iteration. A result of nullopt halts this iteration for all callbacks that depend
  /// on this one's keys, including optional keys. Other callbacks continue. To let them continue,
  /// return a map without the optional key.
  virtual std::optional<DataMap> on_iteration_end(const DataMap& data) = 0;
  /// Called at the end of each training epoch on every rank of the callback, even if an iteration
  /// was halted. Collectives of training, such as sums, belong here. In evaluation and inference
  /// they belong in end().
  virtual void on_epoch_end() {}
  virtual void end() {}
  /// Returns the names of the KPIs that it shows, as far as they are known before the first value.
  /// Two callbacks of one mode with the same KPI are refused (make_callbacks()).
  virtual std::vector<std::string> kpi_names() const { return {}; }

  /// Sets the context, which outlives the run. The driver calls it before begin().
  void set_context(const CallbackContext* context) { context_ = context; }

 protected:
  const CallbackContext& context() const { return *context_; }

 private:
  const CallbackContext* context_ = nullptr;
};

/// Services of a driver for callbacks that need more than their data. Functions over ranks are
/// collective: each rank calls them at the same places. Empty functions mean a single rank, and no
/// output for KPIs.
struct Services {
  /// Sums each number over the ranks, with the result on all of them.
  std::function<void(std::span<double>)> sum_over_ranks;
  /// Returns the maps of all ranks in rank order, on all of them.
  std::function<std::vector<DataMap>(const DataMap&)> gather_over_ranks;
  /// Sets a KPI's newest value, for a gauge and the export's kpi.json. Called on every rank.
  std::function<void(const std::string& name, double value)> set_kpi;
  /// Names of the driver's own figures next to the KPIs (num_samples, ...); no KPI may have one.
  std::vector<std::string> own_figures = {};
  std::vector<std::string> class_names = {};  ///< by class number; empty: unknown
  int64_t num_classes = 0;  ///< of `targets`; 0: unknown, or these are not class numbers
};

/// The x axis of summaries. The last training step of an epoch and the last step of the following
/// evaluation have the same number. So both curves end together. With 100 training and 20
/// evaluation iterations, the evaluation begins 80 later than the training.
///
/// A step is the number of updates done: the first training step is 1. The last step of each kind
/// in an epoch is the number of updates at its end. If an evaluation is longer than all training
/// before it, its first steps are 0 or negative.
struct SummaryClock {
  /// Returns the step. `num_train_steps`: since the start of the run, including this one.
  static int64_t train_step(int64_t num_train_steps) { return num_train_steps; }
  /// Returns the step. `num_train_steps`: before the evaluation. `iteration`: in the evaluation,
  /// from 0, of `num_eval_iterations`.
  static int64_t eval_step(int64_t num_train_steps, int64_t num_eval_iterations,
                           int64_t iteration) {
    return num_train_steps - num_eval_iterations + 1 + iteration;
  }
};

}  // namespace lockstep::coord
