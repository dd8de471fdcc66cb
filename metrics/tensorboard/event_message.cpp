#include "metrics/tensorboard/event_message.h"

#include <bit>
#include <cstring>

namespace lockstep::metrics {
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

}  // namespace lockstep::metrics
