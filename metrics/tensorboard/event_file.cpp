#include "metrics/tensorboard/event_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
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

template <typename T>
void append(T value, std::string* bytes) {
  std::array<char, sizeof(T)> raw;
  std::memcpy(raw.data(), &value, sizeof(T));
  bytes->append(raw.data(), raw.size());
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
        "an image has 1, 3 or 4 channels and as many pixels as it says");
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

namespace {

static_assert(std::endian::native == std::endian::little,
              "fixed-width numbers are written as they lie in memory");

template <typename T>
std::string bytes_of(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

/// Writer of fields in protobuf's wire format: key = number * 8 + wire type, then the value.
class Message {
 public:
  Message& add_varint(int field, uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  Message& add_double(int field, double value) {
    key(field, 1);
    bytes_ += bytes_of(value);
    return *this;
  }
  Message& add_float(int field, float value) {
    key(field, 5);
    bytes_ += bytes_of(value);
    return *this;
  }
  /// Adds a packed list.
  Message& add_doubles(int field, const std::vector<double>& values) {
    std::string packed;
    for (const double value : values) packed += bytes_of(value);
    return add_bytes(field, packed);
  }
  /// Adds a text or a nested message.
  Message& add_bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, int wire_type) { varint(static_cast<uint64_t>(field * 8 + wire_type)); }
  void varint(uint64_t value) {
    // Seven bits per byte; the top bit says that more follow.
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Field numbers of Event, SessionLog, Summary and Summary.Value.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr int kStatus = 1, kStatusStart = 1;
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2;
constexpr int kImage = 4, kHisto = 5, kAudio = 6, kTensor = 8, kMetadata = 9;
// Field numbers of TensorProto, SummaryMetadata and its PluginData.
constexpr int kDtype = 1, kDtypeString = 7, kTensorShape = 2, kStringValue = 8;
constexpr int kPluginData = 1, kPluginName = 1;

/// Returns an Event with its time and step; the caller adds its content.
Message event_at(double wall_time_s, int64_t step) {
  Message event;
  event.add_double(kWallTime, wall_time_s);
  // A field with its default value is omitted, as protobuf does.
  if (step != 0) event.add_varint(kStep, static_cast<uint64_t>(step));
  return event;
}

/// Adds the fields of Summary.Value that contain the value, after its tag.
void add_value(const HistogramSummary& value, Message* to) {
  const Message histogram = Message()
                                .add_double(1, value.min)
                                .add_double(2, value.max)
                                .add_double(3, value.num)
                                .add_double(4, value.sum)
                                .add_double(5, value.sum_squares)
                                .add_doubles(6, value.limits)
                                .add_doubles(7, value.counts);
  to->add_bytes(kHisto, histogram.bytes());
}

void add_value(const ImageSummary& value, Message* to) {
  const Message image = Message()
                            .add_varint(1, static_cast<uint64_t>(value.height))
                            .add_varint(2, static_cast<uint64_t>(value.width))
                            .add_varint(3, static_cast<uint64_t>(value.num_channels))
                            .add_bytes(4, value.png);
  to->add_bytes(kImage, image.bytes());
}

void add_value(const AudioSummary& value, Message* to) {
  const Message audio = Message()
                            .add_float(1, static_cast<float>(value.sample_rate))
                            .add_varint(2, static_cast<uint64_t>(value.num_channels))
                            .add_varint(3, static_cast<uint64_t>(value.num_frames))
                            .add_bytes(4, value.wav)
                            .add_bytes(5, "audio/wav");
  to->add_bytes(kAudio, audio.bytes());
}

void add_value(const TextSummary& value, Message* to) {
  const Message tensor = Message()
                             .add_varint(kDtype, kDtypeString)
                             .add_bytes(kTensorShape, "")  // a scalar
                             .add_bytes(kStringValue, value.text);
  const Message plugin = Message().add_bytes(kPluginName, "text");
  const Message metadata = Message().add_bytes(kPluginData, plugin.bytes());
  to->add_bytes(kTensor, tensor.bytes()).add_bytes(kMetadata, metadata.bytes());
}

}  // namespace

std::string version_event(double wall_time_s) {
  return event_at(wall_time_s, 0).add_bytes(kFileVersion, "brain.Event:2").bytes();
}

std::string start_event(double wall_time_s, int64_t step) {
  const Message log = Message().add_varint(kStatus, kStatusStart);
  return event_at(wall_time_s, step).add_bytes(kSessionLog, log.bytes()).bytes();
}

std::string scalars_event(double wall_time_s, int64_t step, std::span<const Scalar> scalars) {
  Message summary;
  for (const Scalar& scalar : scalars) {
    const Message value = Message()
                              .add_bytes(kTag, scalar.tag)
                              .add_float(kSimpleValue, static_cast<float>(scalar.value));
    summary.add_bytes(kValue, value.bytes());
  }
  return event_at(wall_time_s, step).add_bytes(kSummary, summary.bytes()).bytes();
}

std::string value_event(double wall_time_s, int64_t step, std::string_view tag,
                        const SummaryValue& value) {
  Message tagged = Message().add_bytes(kTag, tag);
  std::visit([&](const auto& one) { add_value(one, &tagged); }, value);
  const Message summary = Message().add_bytes(kValue, tagged.bytes());
  return event_at(wall_time_s, step).add_bytes(kSummary, summary.bytes()).bytes();
}

// The caller encodes points, or passes functions, into a queue; the file's thread writes them. The
// writer belongs to the thread too, so a hanging disk cannot leave it with a dangling reference.

namespace {

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

int64_t bytes_of(const std::string& text) { return static_cast<int64_t>(text.size()); }

}  // namespace

/// State of the writing thread. Only num_errors() is called by other threads.
class EventFile::Writer {
 public:
  explicit Writer(EventFileOptions options)
      : options_(std::move(options)), last_flush_(Clock::now()) {}

  void add(const std::string& event);
  void flush();
  void flush_if_due() {
    if (is_due()) flush();
  }
  void on_lost(std::string_view why);

  int64_t num_errors() const { return num_errors_.load(std::memory_order_relaxed); }

 private:
  bool is_due() const;
  void open();

  const EventFileOptions options_;
  std::unique_ptr<files::Writer> file_;
  std::string pending_;  // records not yet written
  Clock::time_point last_flush_;
  bool start_is_told_ = false;
  int64_t num_files_ = 0, num_failed_writes_ = 0;
  std::atomic<int64_t> num_errors_{0};
};

void EventFile::Writer::add(const std::string& event) {
  // Records are collected, so that a slow disk gets few large writes.
  append_tf_record(event, &pending_);
  flush_if_due();
}

bool EventFile::Writer::is_due() const {
  // The first point is written at once, so that viewers see that the run has begun.
  const bool is_first = num_files_ == 0 && num_failed_writes_ == 0;
  // 2^failures, at most 64: a failing disk is tried less and less often.
  const double patience = static_cast<double>(1 << std::min<int64_t>(num_failed_writes_, 6));
  const std::chrono::duration<double> waited = Clock::now() - last_flush_;
  return is_first || waited.count() >= options_.flush_s * patience ||
         pending_.size() > kMaxPendingBytes;
}

void EventFile::Writer::flush() {
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

void EventFile::Writer::open() {
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

void EventFile::Writer::on_lost(std::string_view why) {
  // One warning per file; the series counts the rest.
  if (num_errors_++ > 0) return;
  log::warning("metrics", fmt::format("TensorBoard points are lost, training goes on: {}; "
                                      "further losses are only counted",
                                      why));
}

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
  std::string event = scalars_event(unix_time_s(), on_axis(step), scalars);
  const int64_t num_bytes = bytes_of(event);
  push([event = std::move(event)] { return event; }, num_bytes);
}

void EventFile::add(int64_t step, std::string_view tag, SummaryValue value) {
  std::string event = value_event(unix_time_s(), on_axis(step), tag, value);
  const int64_t num_bytes = bytes_of(event);
  push([event = std::move(event)] { return event; }, num_bytes);
}

void EventFile::add(int64_t step, std::string_view tag, std::function<SummaryValue()> value,
                    int64_t num_bytes) {
  push([now_s = unix_time_s(), at = on_axis(step), tag = std::string(tag),
        value = std::move(value)] { return value_event(now_s, at, tag, value()); },
       num_bytes);
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
    writer_->on_lost("they come faster than they are computed and written");
}

void EventFile::flush() {
  // In the queue's order: all earlier points are written first.
  (void)queue_.push([writer = writer_] { writer->flush(); }, 0);
}

int64_t EventFile::num_write_errors() const { return writer_->num_errors(); }

}  // namespace lockstep::metrics
