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

/// Writes fields in protobuf's wire form: key = number * 8 + wire type, then the value.
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
  /// A text or a nested message.
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
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Field numbers of Event, SessionLog, Summary and Summary.Value.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr int kStatus = 1, kStatusStart = 1;
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2;

Message event_at(double wall_time_s, int64_t step) {
  Message event;
  event.add_double(kWallTime, wall_time_s);
  if (step != 0) event.add_varint(kStep, static_cast<uint64_t>(step));
  return event;
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

}  // namespace lockstep::metrics
