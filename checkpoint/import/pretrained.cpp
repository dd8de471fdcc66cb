// Folders of weights in the layout of save_pretrained() of transformers: one file, or shards and an
// index. The index is JSON: {"metadata": {...}, "weight_map": {NAME: FILE, ...}}.
//
// Source: transformers/modeling_utils.py (save_pretrained), transformers/utils/__init__.py (names).
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/import/load_weights.h"

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kMaxShardIndexBytes = int64_t{32} << 20;  // as the header of a safetensors file

[[noreturn]] void refuse_index(const std::string& index, const std::string& why) {
  throw Error(ExitCode::kBadData, "weights",
              fmt::format("{} is not a valid index of shards: {}", index, why));
}

bool is_file_anywhere(const std::filesystem::path& path) {
  files::FileStore* const store = files::store_of(path);
  return store != nullptr ? store->look_at(path.string()).has_value() : files::is_file(path);
}

/// Parses an index, in which no name may occur twice: JSON readers would take the last one. What is
/// nested deeper than the map is skipped, so that a hostile file takes no memory.
std::map<std::string, std::string> read_weight_map(const std::string& index) {
  using Event = nlohmann::json::parse_event_t;
  std::map<std::string, std::string> files_by_name;
  std::set<std::string> seen;
  bool is_in_map = false;
  const auto take = [&](int depth, Event event, nlohmann::json& parsed) {
    if (depth == 1 && event == Event::key) is_in_map = parsed == "weight_map";
    if (depth < 2) return true;
    if (event == Event::object_start || event == Event::array_start) {
      if (is_in_map) refuse_index(index, "a tensor's file in its weight_map is not a text");
      return false;
    }
    const bool is_name = is_in_map && depth == 2 && event == Event::key;
    if (is_name && !seen.insert(parsed.get<std::string>()).second)
      refuse_index(index, fmt::format("it has tensor '{}' twice", parsed.get<std::string>()));
    return true;
  };
  const std::string text = files::read(index, kMaxShardIndexBytes);
  try {
    const auto json = nlohmann::json::parse(text, take);
    for (const auto& [name, file] : json.at("weight_map").items())
      files_by_name[name] = file.get<std::string>();
  } catch (const nlohmann::json::exception& fault) {
    refuse_index(index,
                 fmt::format("it needs \"weight_map\": {{\"NAME\": \"FILE\"}} ({})", fault.what()));
  }
  if (files_by_name.empty()) refuse_index(index, "its weight_map is empty");
  return files_by_name;
}

/// Shards of an index, as one file.
class ShardedWeights final : public WeightsFile {
 public:
  explicit ShardedWeights(const std::string& index) : index_(index) {
    const std::map<std::string, std::string> expected = read_weight_map(index);
    open_shards(expected);
    for (const auto& [name, file] : expected)
      if (const auto found = shard_of_.find(name);
          found == shard_of_.end() || found->second != file)
        refuse_index(index_,
                     fmt::format("'{}' is not in {}, which the index names for it", name, file));
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, file] : shard_of_) all.push_back(name);
    return all;
  }
  std::optional<std::string> find(const std::string& name) const override {
    for (const auto& [file, shard] : shards_)
      if (auto found = shard->find(name)) return found;
    return std::nullopt;
  }
  KernelLayout kernel_layout(const std::string& name) const override {
    return shard(name).kernel_layout(name);
  }
  ValueForm form(const std::string& name) const override { return shard(name).form(name); }
  at::Tensor read(const std::string& name) override { return shard(name).read(name); }

 private:
  /// Returns the path of a shard. It must be below the folder: an index may come from anywhere.
  std::filesystem::path path_of(const std::string& file) const {
    const std::filesystem::path inside = std::filesystem::path(file).lexically_normal();
    if (file.empty() || inside.is_absolute() || !inside.has_filename() || *inside.begin() == "..")
      refuse_index(index_,
                   fmt::format("it names the file '{}', which is outside its folder", file));
    return std::filesystem::path(index_).parent_path() / inside;
  }

  void open_shards(const std::map<std::string, std::string>& expected) {
    std::set<std::string> names, missing;
    for (const auto& [name, file] : expected) names.insert(file);
    for (const std::string& file : names)
      if (!is_file_anywhere(path_of(file))) missing.insert(file);
    if (!missing.empty())
      throw Error(ExitCode::kInputMissing, "weights",
                  fmt::format("{}: {} of its {} shards are missing: {}; copy the complete folder",
                              index_, missing.size(), names.size(), fmt::join(missing, ", ")));
    for (const std::string& file : names) {
      const auto& opened = shards_[file] = open_weights_file(path_of(file).string());
      for (const std::string& name : opened->names())
        if (const auto [place, is_new] = shard_of_.emplace(name, file); !is_new)
          refuse_index(index_, fmt::format("tensor '{}' is in two shards, {} and {}", name,
                                           place->second, file));
    }
  }

  WeightsFile& shard(const std::string& name) const { return *shards_.at(shard_of_.at(name)); }

  const std::string index_;
  std::map<std::string, std::unique_ptr<WeightsFile>> shards_;  // by file name
  std::map<std::string, std::string> shard_of_;                 // file name by tensor
};

}  // namespace

std::optional<std::string> weights_in_folder(const std::string& folder) {
  for (const char* const stem : {"model.safetensors", "pytorch_model.bin"})
    for (const std::string_view ending : {std::string_view(), kShardIndexEnding}) {
      const std::filesystem::path path =
          std::filesystem::path(folder) / fmt::format("{}{}", stem, ending);
      if (is_file_anywhere(path)) return path.string();
    }
  return std::nullopt;
}

std::unique_ptr<WeightsFile> open_sharded_weights(const std::string& index) {
  return std::make_unique<ShardedWeights>(index);
}

}  // namespace lockstep::checkpoint
