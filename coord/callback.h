#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "coord/data_map.h"

namespace lockstep::metrics {
class EventFile;
}

namespace lockstep::coord {

enum class Mode { kTrain, kEval, kInfer };

/// "train", "eval", "infer": in run files, logs and labels.
constexpr const char* mode_name(Mode mode) {
  return mode == Mode::kTrain ? "train" : mode == Mode::kEval ? "eval" : "infer";
}

/// Where a callback runs: on rank 0, or on every rank.
enum class RunOn { kRank0, kAll };

struct IterationInfo {
  int64_t epoch_number = 0;
  int64_t iteration_number = 0;    ///< from 0, in this mode
  double execution_time = 0;       ///< seconds the network took
  bool is_last_iteration = false;  ///< ever true in inference alone, where the feeder looks ahead
};

/// What a callback knows of its run; its driver keeps it true around each call.
struct CallbackContext {
  Mode mode = Mode::kTrain;
  std::filesystem::path log_dir;  ///< its results; with RunOn::kAll on several ranks a folder for
                                  ///< each, rank_000 and so on below the run's
  metrics::EventFile* summary_writer =
      nullptr;  ///< the one to write summaries with; null in inference
  int64_t summary_step =
      0;  ///< the x axis: an epoch's last training and last evaluation step share it
  std::optional<int64_t> number_iterations_per_epoch;  ///< nothing where the feed has no known end
  IterationInfo iteration_info;
  int rank = 0;
  int world_size = 1;
  /// In end(): a stop or an error ended the training, evaluation or inference before its last
  /// iteration, so that numbers of the whole are not to be had.
  bool is_broken_off = false;

  bool is_training() const { return mode == Mode::kTrain; }
};

/// A user's code around an iteration, the same in training, evaluation and inference: log, collect,
/// save, judge. Calls: begin, then for each iteration on_iteration_start and on_iteration_end (in
/// training on_epoch_end behind the last one of each epoch), then end (also where a signal ends the
/// run and, in inference, an error, if begin returned; of several ranks one cannot wait for the
/// others then). What it throws ends the run on all ranks.
///
/// Threads: one at a time, of the driver's choice.
class Callback {
 public:
  virtual ~Callback() = default;

  /// Keys that on_iteration_end reads. `_mask` is optional: "mask" is there or not.
  virtual std::vector<std::string> incoming_keys() const { return {}; }
  /// Keys of the map that it returns, `_x` as above. They may be others' incoming keys.
  virtual std::vector<std::string> generated_keys() const { return {}; }
  virtual RunOn run_on() const { return RunOn::kRank0; }
  /// The file or files in log_dir that it writes, as "statistics.json" or "*.tfrecord"; empty:
  /// none. Two callbacks of one mode that write the same ones are refused (make_callbacks()).
  virtual std::string stores_as() const { return ""; }

  virtual void begin() {}
  virtual void on_iteration_start() {}
  /// Nothing (std::nullopt): this iteration ends here for all that depends on what this callback
  /// generates, be it by an optional key, and for nobody else. Whoever wants the others to go on
  /// returns a map without the optional key.
  virtual std::optional<DataMap> on_iteration_end(const DataMap& data) = 0;
  /// What ranks do together in training, sums for instance, belongs here: it is called at the end
  /// of each epoch on every rank that the callback runs on, where the iteration was halted too. In
  /// evaluation and inference end() is that place.
  virtual void on_epoch_end() {}
  virtual void end() {}
  /// Names of the KPIs that it shows, as far as they are known before the first value. Two
  /// callbacks of one mode that show the same one are refused (make_callbacks()).
  virtual std::vector<std::string> kpi_names() const { return {}; }

  /// Set by the driver before begin(); outlives the run.
  void set_context(const CallbackContext* context) { context_ = context; }

 protected:
  const CallbackContext& context() const { return *context_; }

 private:
  const CallbackContext* context_ = nullptr;
};

}  // namespace lockstep::coord
