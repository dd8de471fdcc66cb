// Saver of TFRecords. Writes protobuf directly: sizes are computed first, so that nested messages
// need no temporary buffers.
#include "coord/tf_records_saver.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "coord/data_map.h"

namespace lockstep::coord {
namespace {

static_assert(std::endian::native == std::endian::little,
              "floats are written as they lie in memory");

// Field numbers of Feature and of the lists; wire type 2 is bytes with a length.
enum class ListField : uint64_t { kBytes = 1, kFloats = 2, kInts = 3 };
constexpr uint64_t kLengthType = 2;

uint64_t tag_of(uint64_t field) { return field << 3 | kLengthType; }

/// Returns the bytes of a varint: 7 bits per byte, at least one.
size_t varint_size(uint64_t value) {
  return (static_cast<size_t>(std::bit_width(value | 1)) + 6) / 7;
}

void append_varint(uint64_t value, std::string* bytes) {
  for (; value >= 0x80; value >>= 7) bytes->push_back(static_cast<char>(value | 0x80));
  bytes->push_back(static_cast<char>(value));
}

/// Returns the size of a field with one byte of tag.
size_t field_size(size_t num_bytes) { return 1 + varint_size(num_bytes) + num_bytes; }

/// Returns the size of a list of packed numbers; protobuf omits an empty one.
size_t list_size(size_t packed) { return packed == 0 ? 0 : field_size(packed); }

/// Appends the tag and the length of a field.
void append_header(uint64_t field, size_t num_bytes, std::string* bytes) {
  append_varint(tag_of(field), bytes);
  append_varint(num_bytes, bytes);
}

/// Appends an entry of the map Features.feature. The caller then appends its list of `num_bytes`
/// bytes.
void append_entry(std::string_view prefix, std::string_view suffix, ListField kind,
                  size_t num_bytes, std::string* bytes) {
  const size_t name_size = prefix.size() + suffix.size();
  const size_t feature_size = field_size(num_bytes);
  append_header(1, field_size(name_size) + field_size(feature_size), bytes);
  append_header(1, name_size, bytes);
  bytes->append(prefix).append(suffix);
  append_header(2, feature_size, bytes);
  append_header(static_cast<uint64_t>(kind), num_bytes, bytes);
}

void append_texts(std::string_view name, std::string_view suffix,
                  std::span<const std::string_view> texts, std::string* bytes) {
  size_t size = 0;
  for (const std::string_view text : texts) size += field_size(text.size());
  append_entry(name, suffix, ListField::kBytes, size, bytes);
  for (const std::string_view text : texts) {
    append_header(1, text.size(), bytes);
    bytes->append(text);
  }
}

template <typename Int>
void append_ints(std::string_view name, std::string_view suffix, std::span<const Int> values,
                 std::string* bytes) {
  // Negative numbers take ten bytes, as protobuf's int64 does.
  const auto word = [](Int value) { return static_cast<uint64_t>(static_cast<int64_t>(value)); };
  size_t packed = 0;
  for (const Int value : values) packed += varint_size(word(value));
  append_entry(name, suffix, ListField::kInts, list_size(packed), bytes);
  if (packed > 0) append_header(1, packed, bytes);
  for (const Int value : values) append_varint(word(value), bytes);
}

void append_floats(std::string_view name, const at::Tensor& values, std::string* bytes) {
  const size_t packed = static_cast<size_t>(values.numel()) * sizeof(float);
  append_entry(name, "", ListField::kFloats, list_size(packed), bytes);
  if (packed > 0) append_header(1, packed, bytes);
  bytes->append(static_cast<const char*>(values.const_data_ptr()), packed);
}

template <typename Int>
void append_ints_of(std::string_view name, const at::Tensor& values, std::string* bytes) {
  append_ints<Int>(
      name, "",
      {static_cast<const Int*>(values.const_data_ptr()), static_cast<size_t>(values.numel())},
      bytes);
}

struct TypeName {
  at::ScalarType type;
  std::string_view name;
};
constexpr TypeName kTypeNames[] = {{at::kFloat, "float32"}, {at::kDouble, "float64"},
                                   {at::kHalf, "float16"},  {at::kBFloat16, "bfloat16"},
                                   {at::kLong, "int64"},    {at::kInt, "int32"},
                                   {at::kShort, "int16"},   {at::kChar, "int8"},
                                   {at::kByte, "uint8"},    {at::kBool, "bool"}};

std::string_view type_name(const std::string& key, const at::Tensor& tensor) {
  for (const TypeName& known : kTypeNames)
    if (known.type == tensor.scalar_type()) return known.name;
  throw Error(ExitCode::kBadData, "callbacks",
              fmt::format("key '{}' is a tensor of type {}, which a tf.train.Example cannot hold; "
                          "convert it in a callback before",
                          key, c10::toString(tensor.scalar_type())));
}

/// Appends a tensor's numbers as the list for its type.
void append_numbers(const std::string& key, const at::Tensor& values, std::string* bytes) {
  switch (values.scalar_type()) {
    case at::kByte: {
      const std::string_view raw(static_cast<const char*>(values.const_data_ptr()),
                                 static_cast<size_t>(values.numel()));
      return append_texts(key, "", {&raw, 1}, bytes);
    }
    case at::kLong:
      return append_ints_of<int64_t>(key, values, bytes);
    case at::kInt:
      return append_ints_of<int32_t>(key, values, bytes);
    case at::kShort:
      return append_ints_of<int16_t>(key, values, bytes);
    case at::kChar:
      return append_ints_of<int8_t>(key, values, bytes);
    case at::kBool:
      return append_ints_of<bool>(key, values, bytes);
    case at::kFloat:
      return append_floats(key, values, bytes);
    default:
      return append_floats(key, values.to(at::kFloat), bytes);
  }
}

void append_value(const FlatValue& flat, std::string* bytes) {
  const std::string key = path_text(flat);
  std::string_view type = "string";
  if (const at::Tensor* const given = std::get_if<at::Tensor>(flat.value)) {
    type = type_name(key, *given);
    const at::Tensor tensor = on_cpu(*given);
    append_numbers(key, tensor, bytes);
    append_ints<int64_t>(key, "/shape", {tensor.sizes().data(), tensor.sizes().size()}, bytes);
  } else {
    const auto& given_texts = std::get<std::vector<std::string>>(*flat.value);
    const std::vector<std::string_view> texts(given_texts.begin(), given_texts.end());
    const std::vector<int64_t> shape = {static_cast<int64_t>(texts.size())};
    append_texts(key, "", texts, bytes);
    append_ints<int64_t>(key, "/shape", {shape.data(), texts.size() == 1 ? size_t{0} : 1}, bytes);
  }
  append_texts(key, "/dtype", {&type, 1}, bytes);
}

/// Throws if two values would be one feature, since a reader would see only the last.
void require_own_features(const std::vector<FlatValue>& values) {
  // Without nesting and slashes no two names can be equal.
  const bool can_meet = std::any_of(values.begin(), values.end(), [](const FlatValue& value) {
    return value.path.size() > 1 || value.path.front().find('/') != std::string::npos;
  });
  if (!can_meet) return;
  std::vector<std::string> names;
  for (const FlatValue& value : values)
    for (const char* const part : {"", "/shape", "/dtype"})
      names.push_back(path_text(value) + part);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return;
  throw Error(ExitCode::kBadData, "callbacks",
              fmt::format("two values would be the feature '{}' of one tf.train.Example: a key of "
                          "that name, and one within a map or the shape or type of another; "
                          "rename one of them",
                          *twice));
}

}  // namespace

void append_tf_example(const DataMap& sample, std::string* records) {
  // Reused from sample to sample, so that their memory is allocated once per thread.
  static thread_local std::string features, example;
  features.clear();
  const std::vector<FlatValue> values = flat_values(sample);
  require_own_features(values);
  for (const FlatValue& value : values) append_value(value, &features);
  example.clear();
  // Field 1 of Example is Features.
  append_header(1, features.size(), &example);
  example.append(features);
  append_tf_record(example, records);
}

namespace {

// Records are written in pieces of 256 KiB.
constexpr size_t kPendingBytes = 1 << 18;

}  // namespace

TfRecordsSaverCallback::TfRecordsSaverCallback(TfRecordsSaverOptions options)
    : SaverCallback(options.saver), options_(std::move(options)) {}

void TfRecordsSaverCallback::begin() {
  SaverCallback::begin();
  file_name_.clear();
  num_files_ = num_of_name_ = 0;
  files_.clear();
  is_full_told_ = false;
}

bool TfRecordsSaverCallback::is_new_file() const {
  return file_ == nullptr || num_samples_ == options_.max_samples_per_file ||
         (name_is_given() && file_name_ != save_name());
}

void TfRecordsSaverCallback::save_sample(const DataMap& sample) {
  // The file is opened only when there is a sample for it, so no empty file appears.
  if (is_new_file()) {
    publish();
    if (!open()) return;
  }
  append_tf_example(sample, &pending_);
  ++num_samples_;
  if (pending_.size() >= kPendingBytes) flush();
}

bool TfRecordsSaverCallback::open() {
  if (num_files_ == options_.max_files) {
    if (!std::exchange(is_full_told_, true))
      log::info("callbacks", fmt::format("{} files of records are there, as max_files says: later "
                                         "samples are not saved",
                                         num_files_));
    return false;
  }
  // A further file of the same name gets the next number.
  num_of_name_ = file_name_ == save_name() ? num_of_name_ + 1 : 0;
  file_name_ = save_name();
  std::string path;
  do {  // a given name may equal the name of another one's part
    const std::string part = num_of_name_ == 0 ? "" : fmt::format("-{:05}", num_of_name_);
    path = file_name_.string() + part + ".tfrecord";
  } while (!files_.insert(path).second && ++num_of_name_ > 0);
  file_ = std::make_unique<WholeFile>(path);
  pending_.clear();
  num_samples_ = 0;
  ++num_files_;
  return true;
}

void TfRecordsSaverCallback::flush() {
  try {
    file_->append(pending_);
  } catch (...) {  // the file may have half a record, so it is dropped
    file_.reset();
    throw;
  }
  pending_.clear();
}

void TfRecordsSaverCallback::publish() {
  if (file_ == nullptr) return;
  // Without publish() the .part file is removed.
  if (num_samples_ == 0) return file_.reset();  // its first sample could not be written
  flush();
  const std::unique_ptr<WholeFile> file = std::move(file_);
  file->publish(true);
}

void TfRecordsSaverCallback::end() { publish(); }

}  // namespace lockstep::coord
