#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/threads/task_queue.h"
#include "metrics/tensorboard/summary_value.h"

namespace lockstep::metrics {

struct Scalar {
  std::string_view tag;  ///< "loss/train", "sparsity"
  double value = 0;      ///< stored as float32, which is what TensorBoard plots
};

struct EventFileOptions {
  std::filesystem::path folder;  ///< made if it is not there
  std::string node;              ///< part of the file's name
  /// The run goes on from this step: viewers then drop points of later steps that an earlier
  /// process wrote.
  std::optional<int64_t> resumed_step;
  /// False: every point of other files of the folder stays, whatever its step. For a process that
  /// adds to what others write there.
  bool is_session = true;
  double flush_s = 30;  ///< a point waits in memory for at most half as long again
  /// Callers count steps; the axis shows them times this: samples, if a step takes so many.
  int64_t axis_units_per_step = 1;
  int64_t capacity_bytes = 64 << 20;  ///< of points that wait for the disk, or to be computed
};

/// A TensorBoard event file: `events.out.tfevents.<time>.<node>.<pid>.<n>`.
///
/// No call waits for the disk: a thread of the file's own computes values and writes. No call
/// throws for a failing disk: points that cannot be written, or that find too many waiting, are
/// lost, counted, and the first time warned of. Later points go to a new file, because the torn one
/// cannot be read past its tear; each failure doubles the wait until the next attempt, up to 64
/// times flush_s.
///
/// Format: TFRecords (base/tf_record.h) of messages as in TensorFlow's core/util/event.proto
/// (brain.Event:2). Threads: any may add; points stand in the order of the calls.
class EventFile {
 public:
  explicit EventFile(const EventFileOptions& options);
  ~EventFile();  // flushes; leaves a disk that hangs after 10 s
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Of points that are added from now on; not while another thread adds.
  void set_axis_units_per_step(int64_t num_units) { axis_units_per_step_ = num_units; }

  /// One point in each of the curves.
  void add(int64_t step, std::span<const Scalar> scalars);
  /// A histogram, image, sound or text at this step.
  void add(int64_t step, std::string_view tag, SummaryValue value);
  /// The same of a value that the thread computes, from `num_bytes` that `value` owns.
  void add(int64_t step, std::string_view tag, std::function<SummaryValue()> value,
           int64_t num_bytes);
  /// The thread hands all points so far to the operating system, so that a viewer sees them.
  void flush();
  /// Waits until the thread has done all of the above so far; false after `timeout`.
  bool drain(TaskQueue::Milliseconds timeout) { return queue_.drain(timeout); }

  /// Writes that failed, and points that found too many waiting, so far; for
  /// lockstep_tensorboard_write_errors_total.
  int64_t num_write_errors() const;

 private:
  class Writer;
  int64_t on_axis(int64_t step) const { return step * axis_units_per_step_; }
  void push(std::function<std::string()> event, int64_t num_bytes);

  int64_t axis_units_per_step_;
  const std::shared_ptr<Writer> writer_;  // the thread's too, which a disk may hold for longer
  TaskQueue queue_;
};

}  // namespace lockstep::metrics
