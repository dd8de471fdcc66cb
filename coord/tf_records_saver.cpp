// Saver of TFRecords.
#include "coord/tf_records_saver.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/log.h"
#include "data/formats/tf_example.pb.h"

namespace lockstep::coord {
namespace {

namespace pb = data::pb;

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
  refuse_data(
      fmt::format("key '{}' is a tensor of type {}, which a tf.train.Example cannot contain; "
                  "convert it in an earlier callback",
                  key, c10::toString(tensor.scalar_type())));
}

/// Throws if a protobuf message or list cannot contain this many bytes or numbers.
void require_room(size_t count) {
  if (count > INT32_MAX)
    refuse_data(
        "a sample has more than 2 GiB, which a tf.train.Example cannot contain; save fewer keys");
}

/// Adds a feature and returns it without a list.
pb::Feature* add_feature(std::string name, pb::Features* features) {
  pb::Features::Entry& entry = *features->add_feature();
  entry.set_key(std::move(name));
  return entry.mutable_value();
}

template <typename Int>
void set_ints(std::span<const Int> values, pb::Feature* feature) {
  feature->mutable_int64_list()->mutable_value()->Add(values.begin(), values.end());
}

template <typename Number>
std::span<const Number> numbers_of(const at::Tensor& values) {
  return {static_cast<const Number*>(values.const_data_ptr()), static_cast<size_t>(values.numel())};
}

/// Sets a tensor's numbers as the list for its type.
void set_numbers(const at::Tensor& values, pb::Feature* feature) {
  switch (values.scalar_type()) {
    case at::kByte:
      return feature->mutable_bytes_list()->add_value(values.const_data_ptr(), values.nbytes());
    case at::kLong:
      return set_ints(numbers_of<int64_t>(values), feature);
    case at::kInt:
      return set_ints(numbers_of<int32_t>(values), feature);
    case at::kShort:
      return set_ints(numbers_of<int16_t>(values), feature);
    case at::kChar:
      return set_ints(numbers_of<int8_t>(values), feature);
    case at::kBool:
      return set_ints(numbers_of<bool>(values), feature);
    default:
      const at::Tensor floats = values.to(at::kFloat);
      const std::span<const float> numbers = numbers_of<float>(floats);
      feature->mutable_float_list()->mutable_value()->Add(numbers.begin(), numbers.end());
  }
}

void add_value(const FlatValue& flat, pb::Features* features) {
  const std::string key = path_text(flat);
  std::string_view type = "string";
  std::vector<int64_t> shape;
  pb::Feature* const feature = add_feature(key, features);
  if (const at::Tensor* const given = std::get_if<at::Tensor>(flat.value)) {
    type = type_name(key, *given);
    require_room(static_cast<size_t>(given->numel()));
    shape = given->sizes().vec();
    set_numbers(on_cpu(*given), feature);
  } else {
    const auto& texts = std::get<std::vector<std::string>>(*flat.value);
    if (texts.size() != 1) shape = {static_cast<int64_t>(texts.size())};
    pb::BytesList& list = *feature->mutable_bytes_list();
    for (const std::string& text : texts) list.add_value(text);
  }
  set_ints(std::span<const int64_t>(shape), add_feature(key + "/shape", features));
  add_feature(key + "/dtype", features)->mutable_bytes_list()->add_value(type.data(), type.size());
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
  refuse_data(
      fmt::format("two values would be the feature '{}' of one tf.train.Example: a key of "
                  "that name, and one within a map or the shape or type of another; "
                  "rename one of them",
                  *twice));
}

// Records are written in pieces of 256 KiB.
constexpr size_t kPendingBytes = 1 << 18;

}  // namespace

void append_tf_example(const DataMap& sample, std::string* records) {
  const std::vector<FlatValue> values = flat_values(sample);
  require_own_features(values);
  pb::Example example;
  pb::Features* const features = example.mutable_features();
  for (const FlatValue& value : values) add_value(value, features);
  require_room(example.ByteSizeLong());
  append_tf_record(example.SerializeAsString(), records);
}

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
      log::info(
          "callbacks",
          fmt::format("max_files ({}) files of records are written: later samples are not saved",
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
  file_ = std::make_unique<files::WholeFile>(path, ".part");
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
  const std::unique_ptr<files::WholeFile> file = std::move(file_);
  file->publish(true);
}

void TfRecordsSaverCallback::end() { publish(); }

}  // namespace lockstep::coord
