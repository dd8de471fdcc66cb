// A parser for the part of protobuf that tf.train.Example needs. It returns views of the record
// instead of building messages, since it runs once per sample.
// Wire format of protobuf: https://protobuf.dev/programming-guides/encoding/
#include "data/formats/parsers.h"

#include <optional>

#include "base/error.h"

namespace lockstep::data {
namespace {

[[noreturn]] void refuse_example(const char* what) {
  throw Error(ExitCode::kBadData, "data", std::string("its tf.train.Example ") + what);
}

/// Removes a varint from the front.
uint64_t take_number(std::string_view* bytes) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (bytes->empty()) refuse_example("is cut in a number");
    const auto byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    value |= uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) return value;
  }
  refuse_example("has a number of more than 64 bits");
}

/// Removes `length` bytes from the front.
std::string_view take_part(std::string_view* bytes, uint64_t length) {
  if (length > bytes->size()) refuse_example("is cut in a field");
  const std::string_view part = bytes->substr(0, length);
  bytes->remove_prefix(length);
  return part;
}

/// One field of a protobuf message.
struct WireField {
  uint64_t number = 0;
  unsigned type = 0;
  uint64_t value = 0;      ///< type 0
  std::string_view bytes;  ///< types 1, 2 and 5
};

constexpr unsigned kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5;

/// Removes the next field from the front.
WireField take_field(std::string_view* bytes) {
  const uint64_t tag = take_number(bytes);
  WireField field{tag >> 3, static_cast<unsigned>(tag & 7), 0, {}};
  switch (field.type) {
    case kVarint:
      field.value = take_number(bytes);
      break;
    case kFixed64:
      field.bytes = take_part(bytes, 8);
      break;
    case kLengthDelimited:
      field.bytes = take_part(bytes, take_number(bytes));
      break;
    case kFixed32:
      field.bytes = take_part(bytes, 4);
      break;
    default:
      refuse_example("has a field of unknown type");
  }
  return field;
}

/// Returns the Feature's list; the last one if there are several.
FeatureView view_of_feature(std::string_view feature) {
  FeatureView view;
  while (!feature.empty()) {
    const WireField field = take_field(&feature);
    // Fields 1 to 3 of Feature: bytes_list, float_list, int64_list, in the order of FeatureKind.
    if (field.type == kLengthDelimited && field.number >= 1 && field.number <= 3)
      view = {static_cast<FeatureKind>(field.number), field.bytes};
  }
  return view;
}

struct MapEntry {
  std::string_view key, value;
};

/// Parses an entry of a protobuf map: key is field 1, value is field 2.
MapEntry entry_of(std::string_view bytes) {
  MapEntry entry;
  while (!bytes.empty()) {
    const WireField field = take_field(&bytes);
    if (field.type != kLengthDelimited) continue;
    if (field.number == 1) entry.key = field.bytes;
    if (field.number == 2) entry.value = field.bytes;
  }
  return entry;
}

/// Calls use(entry) for each entry of Example.features.feature.
template <typename Use>
void for_each_entry(std::string_view example, Use use) {
  while (!example.empty()) {
    const WireField features = take_field(&example);
    if (features.number != 1 || features.type != kLengthDelimited) continue;
    std::string_view rest = features.bytes;
    while (!rest.empty()) {
      const WireField entry = take_field(&rest);
      if (entry.number == 1 && entry.type == kLengthDelimited) use(entry_of(entry.bytes));
    }
  }
}

}  // namespace

FeatureView find_feature(std::string_view example, std::string_view name) {
  // A later entry of a map replaces an earlier one, as protobuf requires.
  std::optional<std::string_view> found;
  for_each_entry(example, [&](const MapEntry& entry) {
    if (entry.key == name) found = entry.value;
  });
  return found ? view_of_feature(*found) : FeatureView{};
}

std::vector<std::string> feature_names(std::string_view example) {
  std::vector<std::string> names;
  for_each_entry(example, [&](const MapEntry& entry) { names.emplace_back(entry.key); });
  return names;
}

std::string_view only_bytes(const FeatureView& feature) {
  std::string_view list = feature.list;
  std::optional<std::string_view> value;
  while (!list.empty()) {
    const WireField field = take_field(&list);
    if (field.number != 1 || field.type != kLengthDelimited) continue;
    if (value) refuse_example("has several values where one belongs");
    value = field.bytes;
  }
  if (!value) refuse_example("has an empty list where one value belongs");
  return *value;
}

void append_ints(const FeatureView& feature, std::vector<int64_t>* values) {
  std::string_view list = feature.list;
  while (!list.empty()) {
    WireField field = take_field(&list);
    if (field.number != 1) continue;
    if (field.type == kVarint) values->push_back(static_cast<int64_t>(field.value));
    if (field.type != kLengthDelimited) continue;
    // Packed: varints one after the other.
    while (!field.bytes.empty()) values->push_back(static_cast<int64_t>(take_number(&field.bytes)));
  }
}

void append_floats(const FeatureView& feature, std::string* bytes) {
  std::string_view list = feature.list;
  while (!list.empty()) {
    const WireField field = take_field(&list);
    if (field.number != 1 || (field.type != kFixed32 && field.type != kLengthDelimited)) continue;
    if (field.bytes.size() % 4 != 0) refuse_example("has a list of floats that is cut");
    bytes->append(field.bytes);
  }
}

}  // namespace lockstep::data
