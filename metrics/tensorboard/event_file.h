#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/threads.h"

/// TensorBoard event files: points of curves and other values, the writer, the encoded messages.
namespace lockstep::metrics {

/// Distribution of values: counts[i] of them are in [limits[i - 1], limits[i]).
struct HistogramSummary {
  double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits, counts;  ///< equal lengths, limits ascending
};
/// Computes the histogram with TensorFlow's limits: +-1e-12 times powers of 1.1. Empty buckets at
/// both ends and values that are not finite are omitted.
HistogramSummary histogram_of(std::span<const float> values);

struct ImageSummary {
  int64_t height = 0, width = 0;
  int num_channels = 0;  ///< 1: grey, 3: RGB, 4: RGBA
  std::string png;
};
/// Encodes an image. `pixels_HWC`: one byte per value, row by row. Throws Error(kBug) for sizes
/// that do not fit.
ImageSummary image_of(std::span<const uint8_t> pixels_HWC, int64_t height, int64_t width,
                      int num_channels);

struct AudioSummary {
  double sample_rate = 0;  ///< Hz
  int num_channels = 0;
  int64_t num_frames = 0;
  std::string wav;
};
/// Encodes a sound. `samples_TC`: -1 to 1, values beyond are clipped; stored with 16 bits.
AudioSummary audio_of(std::span<const float> samples_TC, double sample_rate, int num_channels);

/// Text, shown as Markdown.
struct TextSummary {
  std::string text;
};

using SummaryValue = std::variant<HistogramSummary, ImageSummary, AudioSummary, TextSummary>;

struct Scalar {
  std::string_view tag;  ///< "loss/train", "sparsity"
  double value = 0;      ///< stored as float32, which is what TensorBoard plots
};

struct EventFileOptions {
  std::filesystem::path folder;  ///< created if missing
  std::string node;              ///< part of the file's name
  /// Set if the run resumes from this step. Viewers then drop points of later steps that an earlier
  /// process wrote.
  std::optional<int64_t> resumed_step;
  /// False: points of the folder's other files stay, whatever their step. For a process that adds
  /// to what others write there.
  bool is_session = true;
  double flush_s = 30;  ///< a point waits in memory for at most 1.5 times this
  /// Factor from the caller's steps to the axis: samples per step, if the axis shows samples.
  int64_t axis_units_per_step = 1;
  int64_t capacity_bytes = 64 << 20;  ///< limit for points that wait to be computed or written
};

/// TensorBoard event file: `events.out.tfevents.<time>.<node>.<pid>.<n>`.
///
/// No call waits for the disk: the file's own thread computes values and writes. No call throws for
/// a failing disk. Points are lost if they cannot be written or if too many wait. Lost points are
/// counted, and the first loss is logged as a warning. Later points go to a new file, because the
/// truncated one is unreadable beyond its end. Each failure doubles the wait until the next
/// attempt, up to 64 times flush_s.
///
/// Format: TFRecords (base/digest.h) of messages as in TensorFlow's core/util/event.proto
/// (brain.Event:2). Threads: any may add; points keep the order of the calls.
class EventFile {
 public:
  explicit EventFile(const EventFileOptions& options);
  ~EventFile();  // flushes; gives up on a hanging disk after 10 s
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Applies to points added from now on. Do not call it while another thread adds.
  void set_axis_units_per_step(int64_t num_units) { axis_units_per_step_ = num_units; }

  /// Adds one point to each of the curves.
  void add(int64_t step, std::span<const Scalar> scalars);
  /// Adds a histogram, image, sound or text at this step.
  void add(int64_t step, std::string_view tag, SummaryValue value);
  /// Adds a value that the thread computes. `value` owns `num_bytes`.
  void add(int64_t step, std::string_view tag, std::function<SummaryValue()> value,
           int64_t num_bytes);
  /// Makes the thread write all points so far to the operating system, so that viewers see them.
  void flush();
  /// Waits until the thread has done everything so far. Returns false after `timeout`.
  bool drain(TaskQueue::Milliseconds timeout) { return queue_.drain(timeout); }

  /// Returns the number of failed writes and of points rejected because too many waited. For
  /// lockstep_tensorboard_write_errors_total.
  int64_t num_write_errors() const;

 private:
  class Writer;
  int64_t on_axis(int64_t step) const { return step * axis_units_per_step_; }
  void push(std::string event);
  void push(std::function<std::string()> event, int64_t num_bytes);

  int64_t axis_units_per_step_;
  const std::shared_ptr<Writer> writer_;  // shared with the thread
  TaskQueue queue_;
};

// Serialized messages of metrics/tensorboard/event.proto.

/// Event{wall_time, step, session_log{status: START}}. Viewers drop earlier points with a step >=
/// `step`. They ignore the first one in a folder, so every process writes one, not only a resumed
/// one.
std::string start_event(double wall_time_s, int64_t step);
/// Event{wall_time, step, summary{value{tag, simple_value}...}}.
std::string scalars_event(double wall_time_s, int64_t step, std::span<const Scalar> scalars);

}  // namespace lockstep::metrics
