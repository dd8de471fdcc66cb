#include "metrics/tensorboard/event_file.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <png.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "metrics/samples.h"
#include "metrics/tensorboard/event.pb.h"

// Values, messages and writer of TensorBoard event files. Encodes histograms, images (libpng) and
// sounds (WAV) as TensorBoard expects them.
namespace lockstep::metrics {
namespace {

/// Limits -DBL_MAX .. -1e-12, 0, 1e-12 .. DBL_MAX, as in tensorflow/core/lib/histogram.
const std::vector<double>& all_limits() {
  static const std::vector<double> limits = [] {
    std::vector<double> positive;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
    positive.push_back(std::numeric_limits<double>::max());
    std::vector<double> all(positive.rbegin(), positive.rend());
    for (double& limit : all) limit = -limit;
    all.push_back(0);
    all.insert(all.end(), positive.begin(), positive.end());
    return all;
  }();
  return limits;
}

int format_of(int num_channels) {
  if (num_channels == 1) return PNG_FORMAT_GRAY;
  return num_channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;
}

/// Appends a number in little-endian byte order.
template <typename T>
void append(T value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof value);
}

constexpr int kSampleBytes = 2;

/// Returns the RIFF header of 16-bit PCM.
std::string wav_header(uint32_t num_bytes, uint32_t sample_rate, uint16_t num_channels) {
  std::string header = "RIFF";
  append<uint32_t>(36 + num_bytes, &header);
  header += "WAVEfmt ";
  append<uint32_t>(16, &header);
  append<uint16_t>(1, &header);  // PCM
  append<uint16_t>(num_channels, &header);
  append<uint32_t>(sample_rate, &header);
  append<uint32_t>(sample_rate * num_channels * kSampleBytes, &header);
  append<uint16_t>(static_cast<uint16_t>(num_channels * kSampleBytes), &header);
  append<uint16_t>(8 * kSampleBytes, &header);
  header += "data";
  append<uint32_t>(num_bytes, &header);
  return header;
}

/// Returns an Event with its time and step; the caller adds its content.
pb::Event event_at(double wall_time_s, int64_t step) {
  pb::Event event;
  event.set_wall_time(wall_time_s);
  if (step != 0) event.set_step(step);  // TensorFlow omits a step of 0
  return event;
}

/// Sets the fields of Summary.Value that contain the value.
void set_value(const HistogramSummary& value, pb::Summary::Value* to) {
  pb::Histogram& histogram = *to->mutable_histo();
  histogram.set_min(value.min);
  histogram.set_max(value.max);
  histogram.set_num(value.num);
  histogram.set_sum(value.sum);
  histogram.set_sum_squares(value.sum_squares);
  histogram.mutable_bucket_limit()->Add(value.limits.begin(), value.limits.end());
  histogram.mutable_bucket()->Add(value.counts.begin(), value.counts.end());
}

void set_value(const ImageSummary& value, pb::Summary::Value* to) {
  pb::Image& image = *to->mutable_image();
  image.set_height(static_cast<int32_t>(value.height));
  image.set_width(static_cast<int32_t>(value.width));
  image.set_colorspace(value.num_channels);
  image.set_encoded_image_string(value.png);
}

void set_value(const AudioSummary& value, pb::Summary::Value* to) {
  pb::Audio& audio = *to->mutable_audio();
  audio.set_sample_rate(static_cast<float>(value.sample_rate));
  audio.set_num_channels(value.num_channels);
  audio.set_length_frames(value.num_frames);
  audio.set_encoded_audio_string(value.wav);
  audio.set_content_type("audio/wav");
}

void set_value(const TextSummary& value, pb::Summary::Value* to) {
  constexpr int32_t kDtypeString = 7;
  pb::Tensor& tensor = *to->mutable_tensor();
  tensor.set_dtype(kDtypeString);
  (void)tensor.mutable_tensor_shape();  // a scalar
  tensor.add_string_val(value.text);
  to->mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
}

/// Returns the first record of every file.
std::string version_event(double wall_time_s) {
  pb::Event event = event_at(wall_time_s, 0);
  event.set_file_version("brain.Event:2");
  return event.SerializeAsString();
}

std::string value_event(double wall_time_s, int64_t step, std::string_view tag,
                        const SummaryValue& value) {
  pb::Event event = event_at(wall_time_s, step);
  pb::Summary::Value& tagged = *event.mutable_summary()->add_value();
  tagged.set_tag(std::string(tag));
  std::visit([&](const auto& one) { set_value(one, &tagged); }, value);
  return event.SerializeAsString();
}

// The caller encodes points, or passes functions, into a queue; the file's thread writes them. The
// writer belongs to the thread too, so a hanging disk cannot leave it with a dangling reference.

using Clock = std::chrono::steady_clock;
constexpr size_t kMaxPendingBytes = 1 << 20;
constexpr TaskQueue::Milliseconds kPatience{10'000};
// Fraction of flush_s without a point after which the thread checks.
constexpr double kIdleShare = 0.5;
constexpr double kLongestIdle_s = 3600;

TaskQueue::Milliseconds idle_time(double flush_s) {
  return TaskQueue::Milliseconds(
      static_cast<int64_t>(1000 * std::min(kIdleShare * flush_s, kLongestIdle_s)));
}

}  // namespace

HistogramSummary histogram_of(std::span<const float> values) {
  const std::vector<double>& limits = all_limits();
  std::vector<double> counts(limits.size(), 0);
  HistogramSummary found{.min = std::numeric_limits<double>::max(),
                         .max = std::numeric_limits<double>::lowest()};
  // Sums in double: millions of float values would lose digits.
  for (const float single : values) {
    const double value = single;
    if (!std::isfinite(value)) continue;
    // The last limit is DBL_MAX, so every finite value has a bucket.
    ++counts[static_cast<size_t>(std::upper_bound(limits.begin(), limits.end() - 1, value) -
                                 limits.begin())];
    found.min = std::min(found.min, value);
    found.max = std::max(found.max, value);
    found.sum += value;
    found.sum_squares += value * value;
    ++found.num;
  }
  if (found.num == 0) return {.limits = {0}, .counts = {0}};
  const auto is_filled = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), is_filled) - counts.begin();
  const auto end =
      counts.size() - static_cast<size_t>(std::find_if(counts.rbegin(), counts.rend(), is_filled) -
                                          counts.rbegin());
  // One empty bucket in front gives the first filled one its lower limit.
  const auto begin = static_cast<size_t>(std::max<int64_t>(first - 1, 0));
  found.limits.assign(limits.begin() + static_cast<int64_t>(begin),
                      limits.begin() + static_cast<int64_t>(end));
  found.counts.assign(counts.begin() + static_cast<int64_t>(begin),
                      counts.begin() + static_cast<int64_t>(end));
  return found;
}

ImageSummary image_of(std::span<const uint8_t> pixels_HWC, int64_t height, int64_t width,
                      int num_channels) {
  check((num_channels == 1 || num_channels == 3 || num_channels == 4) && height > 0 && width > 0 &&
            static_cast<int64_t>(pixels_HWC.size()) == height * width * num_channels,
        "an image has 1, 3 or 4 channels and height * width pixels");
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = static_cast<png_uint_32>(format_of(num_channels));
  ImageSummary summary{height, width, num_channels, {}};
  // libpng needs the maximum size; the result is cut to the actual one.
  png_alloc_size_t num_bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  summary.png.resize(num_bytes);
  const int ok = png_image_write_to_memory(&image, summary.png.data(), &num_bytes, 0,
                                           pixels_HWC.data(), 0, nullptr);
  check(ok != 0, "libpng writes into memory");
  summary.png.resize(num_bytes);
  return summary;
}

AudioSummary audio_of(std::span<const float> samples_TC, double sample_rate, int num_channels) {
  check(num_channels > 0 && samples_TC.size() % static_cast<size_t>(num_channels) == 0,
        "each frame has a sample of every channel");
  AudioSummary summary{
      .sample_rate = sample_rate,
      .num_channels = num_channels,
      .num_frames = static_cast<int64_t>(samples_TC.size()) / num_channels,
      .wav = wav_header(static_cast<uint32_t>(samples_TC.size() * kSampleBytes),
                        static_cast<uint32_t>(sample_rate), static_cast<uint16_t>(num_channels))};
  for (const float sample : samples_TC) {
    // NaN and infinity become silence.
    const float cut = std::isfinite(sample) ? std::clamp(sample, -1.0F, 1.0F) : 0.0F;
    append(static_cast<int16_t>(std::lround(cut * 32767)), &summary.wav);
  }
  return summary;
}

std::string start_event(double wall_time_s, int64_t step) {
  pb::Event event = event_at(wall_time_s, step);
  event.mutable_session_log()->set_status(pb::SessionLog::START);
  return event.SerializeAsString();
}

std::string scalars_event(double wall_time_s, int64_t step, std::span<const Scalar> scalars) {
  pb::Event event = event_at(wall_time_s, step);
  pb::Summary& summary = *event.mutable_summary();
  for (const Scalar& scalar : scalars) {
    pb::Summary::Value& value = *summary.add_value();
    value.set_tag(std::string(scalar.tag));
    value.set_simple_value(static_cast<float>(scalar.value));
  }
  return event.SerializeAsString();
}

/// State of the writing thread. Only num_errors() is called by other threads.
class EventFile::Writer {
 public:
  explicit Writer(EventFileOptions options)
      : options_(std::move(options)), last_flush_(Clock::now()) {}

  void add(const std::string& event) {
    // Records are collected, so that a slow disk gets few large writes.
    append_tf_record(event, &pending_);
    flush_if_due();
  }
  void flush() {
    last_flush_ = Clock::now();
    if (pending_.empty()) return;
    try {
      if (!file_) open();
      file_->append(pending_);
      num_failed_writes_ = 0;
    } catch (const Error& fault) {
      // The next write opens a new file: readers stop at the torn record of this one.
      file_.reset();
      ++num_failed_writes_;
      on_lost(fault.what());
    }
    pending_.clear();
  }
  void flush_if_due() {
    if (is_due()) flush();
  }
  void on_lost(std::string_view why) {
    // One warning per file; the series counts the rest.
    if (num_errors_++ > 0) return;
    log::warning(
        "metrics",
        fmt::format(
            "TensorBoard points are lost, training continues: {}; further losses are only counted",
            why));
  }

  int64_t num_errors() const { return num_errors_.load(std::memory_order_relaxed); }

 private:
  bool is_due() const {
    // The first point is written at once, so that viewers see that the run has begun.
    const bool is_first = num_files_ == 0 && num_failed_writes_ == 0;
    // 2^failures, at most 64: a failing disk is tried less and less often.
    const double patience = static_cast<double>(1 << std::min<int64_t>(num_failed_writes_, 6));
    const std::chrono::duration<double> waited = Clock::now() - last_flush_;
    return is_first || waited.count() >= options_.flush_s * patience ||
           pending_.size() > kMaxPendingBytes;
  }
  void open() {
    files::make_folders(options_.folder);
    const double now_s = unix_time_s();
    const std::filesystem::path path =
        options_.folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}",
                                      static_cast<int64_t>(now_s), options_.node, ::getpid(),
                                      num_files_++);
    file_ = std::make_unique<files::Writer>(path);
    std::string head;
    append_tf_record(version_event(now_s), &head);
    if (options_.is_session && !start_is_told_) {
      // Points up to the resumed step stay; later ones of earlier processes are dropped.
      const int64_t first =
          options_.resumed_step ? *options_.resumed_step * options_.axis_units_per_step + 1 : 0;
      append_tf_record(start_event(now_s, first), &head);
    }
    file_->append(head);
    start_is_told_ = true;
  }

  const EventFileOptions options_;
  std::unique_ptr<files::Writer> file_;
  std::string pending_;  // records not yet written
  Clock::time_point last_flush_;
  bool start_is_told_ = false;
  int64_t num_files_ = 0, num_failed_writes_ = 0;
  std::atomic<int64_t> num_errors_{0};
};

EventFile::EventFile(const EventFileOptions& options)
    : axis_units_per_step_(options.axis_units_per_step),
      writer_(std::make_shared<Writer>(options)),
      queue_({.thread_name = "event_file",
              .capacity_bytes = options.capacity_bytes,
              .patience = kPatience,
              .idle = [writer = writer_] { writer->flush_if_due(); },
              .idle_time = idle_time(options.flush_s)}) {}

EventFile::~EventFile() { flush(); }

void EventFile::add(int64_t step, std::span<const Scalar> scalars) {
  push(scalars_event(unix_time_s(), on_axis(step), scalars));
}

void EventFile::add(int64_t step, std::string_view tag, SummaryValue value) {
  push(value_event(unix_time_s(), on_axis(step), tag, value));
}

void EventFile::add(int64_t step, std::string_view tag, std::function<SummaryValue()> value,
                    int64_t num_bytes) {
  push([now_s = unix_time_s(), at = on_axis(step), tag = std::string(tag),
        value = std::move(value)] { return value_event(now_s, at, tag, value()); },
       num_bytes);
}

void EventFile::push(std::string event) {
  const auto num_bytes = static_cast<int64_t>(event.size());
  push([event = std::move(event)] { return event; }, num_bytes);
}

void EventFile::push(std::function<std::string()> event, int64_t num_bytes) {
  const auto write = [writer = writer_, event = std::move(event)] {
    try {
      writer->add(event());
    } catch (const std::exception& fault) {  // out of memory
      writer->on_lost(fault.what());
    }
  };
  if (!queue_.push(write, num_bytes))
    writer_->on_lost("they are recorded faster than they can be written");
}

void EventFile::flush() {
  // In the queue's order: all earlier points are written first.
  (void)queue_.push([writer = writer_] { writer->flush(); }, 0);
}

int64_t EventFile::num_write_errors() const { return writer_->num_errors(); }

}  // namespace lockstep::metrics
