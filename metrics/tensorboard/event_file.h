#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "metrics/tensorboard/summary_value.h"

namespace lockstep::files {
class Writer;
}

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
  double flush_s = 30;  ///< how long a point may wait in memory, looked at when the next one comes
};

/// A TensorBoard event file: `events.out.tfevents.<time>.<node>.<pid>.<n>`.
///
/// No call throws for a failing disk: points that cannot be written are lost, counted, and the
/// first time warned of. Later points go to a new file, because the torn one cannot be read past
/// its tear; each failure doubles the wait until the next attempt, up to 64 times flush_s.
///
/// Format: TFRecords (base/tf_record.h) of messages as in TensorFlow's core/util/event.proto
/// (brain.Event:2). Threads: one.
class EventFile {
 public:
  explicit EventFile(EventFileOptions options);
  ~EventFile();  // flushes
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// One point in each of the curves.
  void add(int64_t step, std::span<const Scalar> scalars);
  /// A histogram, image, sound or text at this step.
  void add(int64_t step, std::string_view tag, const SummaryValue& value);
  /// Hands all points to the operating system; a viewer sees them now.
  void flush();

  /// Failed attempts so far, for lockstep_tensorboard_write_errors_total.
  int64_t num_write_errors() const { return num_write_errors_; }
  /// The file under way; empty before the first flush and after a failure.
  const std::filesystem::path& path() const { return path_; }

 private:
  void add_event(const std::string& event);
  bool is_due() const;
  void open();
  void on_fault(std::string_view text);

  const EventFileOptions options_;
  std::filesystem::path path_;
  std::unique_ptr<files::Writer> writer_;
  std::string pending_;  // records not yet written
  std::chrono::steady_clock::time_point last_flush_;
  bool start_is_told_ = false;
  int64_t num_files_ = 0;
  int64_t num_write_errors_ = 0;
};

}  // namespace lockstep::metrics
