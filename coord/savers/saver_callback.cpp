#include "coord/savers/saver_callback.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "coord/savers/split_batch.h"

namespace lockstep::coord {
namespace {

constexpr const char* kSaveNames = "save_names";
constexpr size_t kLongestName = 235;  // of a path's part: 255, minus "-00001.tfrecord.part"

[[noreturn]] void refuse_name(const std::string& message) {
  throw Error(ExitCode::kBadData, "callbacks", message);
}

}  // namespace

void require_inside(const std::string& name) {
  if (name.empty()) refuse_name("a name to save a sample under is empty; name each sample");
  if (std::count(name.begin(), name.end(), '\0') > 0)
    refuse_name("a name to save a sample under has a zero byte");
  std::string_view rest = name;
  // Each part is checked: ".." in any of them could leave the folder.
  while (true) {
    const size_t end = std::min(rest.find('/'), rest.size());
    const std::string_view part = rest.substr(0, end);
    if (part.size() > kLongestName)
      refuse_name(
          fmt::format("a name to save a sample under has {} bytes, which with an extension "
                      "are more than file systems take: at most {} are; it begins '{}...'",
                      part.size(), kLongestName, part.substr(0, 40)));
    if (part.empty() || part == "." || part == "..")
      refuse_name(
          fmt::format("'{}' is no name to save a sample under: no leading '/', no '..' and no "
                      "empty part, so that nothing is written outside the results' folder",
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
    refuse_name(fmt::format("save_names holds {} names for {} samples; give one a sample",
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
    refuse_name(
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

}  // namespace lockstep::coord
