#include "coord/saver_callback.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/json.h"
#include "coord/callback_types.h"
#include "coord/data_map.h"
#include "coord/tf_records_saver.h"

namespace lockstep::coord {

namespace {

constexpr const char* kSaveNames = "save_names";
constexpr size_t kLongestName = 235;  // of a path's part: 255, minus "-00001.tfrecord.part"

using Json = nlohmann::ordered_json;

/// Returns the numbers of this shape as nested lists, in row-major order from `next` on, which is
/// advanced.
template <typename Number>
Json nested_list(const Number** next, at::IntArrayRef shape) {
  if (shape.empty()) return *(*next)++;
  Json list = Json::array();
  for (int64_t i = 0; i < shape.front(); ++i) list.push_back(nested_list(next, shape.slice(1)));
  return list;
}

template <typename Number>
Json json_of_numbers(const at::Tensor& tensor) {
  const at::Tensor numbers = on_cpu(tensor).to(c10::CppTypeToScalarType<Number>::value);
  const auto* next = static_cast<const Number*>(numbers.const_data_ptr());
  return nested_list(&next, numbers.sizes());
}

Json json_of_map(const DataMap& map);

Json json_of(const DataValue& value) {
  if (const at::Tensor* const tensor = std::get_if<at::Tensor>(&value))
    return json_of_tensor(*tensor);
  if (const auto* const texts = std::get_if<std::vector<std::string>>(&value))
    return texts->size() == 1 ? Json(texts->front()) : Json(*texts);
  return json_of_map(*std::get<std::shared_ptr<const DataMap>>(value));
}

Json json_of_map(const DataMap& map) {
  Json object = Json::object();
  for (const auto& [key, value] : map.values()) object[key] = json_of(value);
  return object;
}

// Rows of the two savers, and the keys that several callbacks share.

/// Reads the keys that both savers share.
SampleSaverOptions read_saver(ConfigReader* in, const std::string& name) {
  SampleSaverOptions options;
  options.keys = read_keys(in, name + ": saved tensors; '_x' is optional");
  options.not_batch_keys = read_not_batch_keys(
      in, name + ": keys without a sample dimension, saved whole with each sample", options.keys);
  in->read("save_prefix", &options.save_prefix, name + ": prefix of names");
  in->read("save_suffix", &options.save_suffix, name + ": suffix of names");
  return options;
}

// Not in training by default: each epoch would save each sample again.
const std::vector<std::string> kSaverModes = {"eval", "infer"};

}  // namespace

void require_inside(const std::string& name) {
  if (name.empty()) refuse_data("the name of a sample is empty; name each sample");
  if (std::count(name.begin(), name.end(), '\0') > 0)
    refuse_data("the name of a sample contains a zero byte");
  std::string_view rest = name;
  // Each part is checked: ".." in any of them could leave the folder.
  while (true) {
    const size_t end = std::min(rest.find('/'), rest.size());
    const std::string_view part = rest.substr(0, end);
    if (part.size() > kLongestName)
      refuse_data(
          fmt::format("the name of a sample has {} bytes, too long for file systems with an "
                      "extension: at most {}; it begins '{}...'",
                      part.size(), kLongestName, part.substr(0, 40)));
    if (part.empty() || part == "." || part == "..")
      refuse_data(
          fmt::format("'{}' is not a valid name of a sample: no leading '/', no '..' and no empty "
                      "part, so that nothing is written outside the results' folder",
                      name));
    if (end == rest.size()) return;
    rest.remove_prefix(end + 1);
  }
}

std::vector<std::string> SaverCallback::incoming_keys() const {
  std::vector<std::string> keys = options_.keys;
  keys.push_back(std::string("_") + kSaveNames);
  return keys;
}

void SaverCallback::begin() {
  epoch_ = -1;
  epoch_names_.clear();
}

std::optional<DataMap> SaverCallback::on_iteration_end(const DataMap& data) {
  // Names must be unique within an epoch; the next epoch overwrites.
  if (std::exchange(epoch_, context().iteration_info.epoch_number) !=
      context().iteration_info.epoch_number)
    epoch_names_.clear();
  DataMap saved;
  for (const auto& [key, value] : data.values())
    if (key != kSaveNames) saved.put(key, value);
  const std::vector<DataMap> samples = split_batch_inputs(saved, options_.not_batch_keys);
  name_is_given_ = data.contains(kSaveNames);
  // All names are checked first, so an invalid one leaves no sample of the batch.
  if (name_is_given_) require_names(data, samples.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    take_name(name_of(data, i));
    save_sample(samples[i]);
  }
  return DataMap();
}

void SaverCallback::require_names(const DataMap& data, size_t num_samples) const {
  const std::vector<std::string>& names = data.texts(kSaveNames);
  if (names.size() != num_samples)
    refuse_data(fmt::format("save_names has {} names for {} samples; give one per sample",
                            names.size(), num_samples));
  for (const std::string& name : names) require_inside(name);
}

std::string SaverCallback::name_of(const DataMap& data, size_t sample) const {
  if (name_is_given_)
    return options_.save_prefix + data.texts(kSaveNames)[sample] + options_.save_suffix;
  const IterationInfo& info = context().iteration_info;
  return fmt::format("{}epoch_{:05}_iter_{:06}_rank_{:03}_sample_{:05}{}", options_.save_prefix,
                     info.epoch_number, info.iteration_number, context().rank, sample,
                     options_.save_suffix);
}

// Generated names are unique by themselves, so only given names are recorded.
void SaverCallback::take_name(const std::string& name) {
  require_inside(name);
  const bool repeats = names_may_repeat() && name == last_name_;
  if (name_is_given_ && !epoch_names_.insert(name).second && !repeats)
    refuse_data(
        fmt::format("the name '{}' is given to two samples of one epoch; the second would "
                    "replace the first",
                    name));
  last_name_ = name;
  save_name_ = context().log_dir / name;
  // Consecutive samples often have one folder, so it is created once.
  if (folder_ == save_name_.parent_path()) return;
  folder_ = save_name_.parent_path();
  files::make_folders(folder_);
}

Json json_of_tensor(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kBool) return json_of_numbers<bool>(tensor);
  if (c10::isIntegralType(tensor.scalar_type(), false)) return json_of_numbers<int64_t>(tensor);
  return json_of_numbers<double>(tensor);
}

void PredictionSaver::save_sample(const DataMap& sample) {
  files::WholeFile file(save_name().string() + ".json", ".part");
  file.append(json_text(json_of_map(sample)) + "\n");
  file.publish(false);
}

std::vector<std::string> read_keys(ConfigReader* in, const std::string& help) {
  std::vector<std::string> keys;
  in->require("keys");
  if (in->read("keys", &keys, help) && keys.empty())
    in->fault("keys", "'keys' is empty: list the keys that the callback reads");
  return keys;
}

std::vector<std::string> read_not_batch_keys(ConfigReader* in, const std::string& help,
                                             const std::vector<std::string>& keys) {
  std::vector<std::string> names, known;
  in->read("not_batch_keys", &names, help);
  for (const std::string& key : keys) known.push_back(callback_key(key).name);
  for (const std::string& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end())
      in->fault("not_batch_keys", fmt::format("'{}' is not one of 'keys'{}; available: {}", name,
                                              did_you_mean(name, known), fmt::join(known, ", ")));
  return names;
}

CallbackType prediction_saver() {
  return {.name = "prediction_saver",
          .read = [](ConfigReader* in) -> MakeCallback {
            const SampleSaverOptions options = read_saver(in, "prediction_saver");
            return [=](const Services&) { return std::make_unique<PredictionSaver>(options); };
          },
          .modes = kSaverModes};
}

CallbackType tf_records_saver() {
  return {.name = "tfrecords_saver",
          .read = [](ConfigReader* in) -> MakeCallback {
            TfRecordsSaverOptions options;
            options.saver = read_saver(in, "tfrecords_saver");
            in->read("max_samples_per_file", &options.max_samples_per_file, count_from(1),
                     "tfrecords_saver: samples per file");
            in->read("max_files", &options.max_files, count_from(1),
                     "tfrecords_saver: most files per rank");
            return
                [=](const Services&) { return std::make_unique<TfRecordsSaverCallback>(options); };
          },
          .modes = kSaverModes};
}

}  // namespace lockstep::coord
