#include "checkpoint/format/checkpoint_files.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"

// Separate from checkpoint/format/state_file.cpp, which needs protobuf: the command `lockstep`
// links only this file.
namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kIndexSuffix = "index";

/// Parses a number in its canonical form: no sign, no leading zero.
std::optional<int64_t> parse_number(std::string_view text) {
  if (text.empty() || text.front() == '-' || (text.size() > 1 && text.front() == '0'))
    return std::nullopt;
  int64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

constexpr std::string_view kShardForm = ".data-00000-of-00000";
constexpr std::string_view kPatternLetters = "\\*?[]";

/// True if the text matches the form, in which 0 means any digit.
bool has_form(std::string_view text, std::string_view form) {
  return std::equal(text.begin(), text.end(), form.begin(), form.end(),
                    [](char letter, char wanted) {
                      return wanted == '0' ? letter >= '0' && letter <= '9' : letter == wanted;
                    });
}

}  // namespace

std::string numbered(const std::string& prefix, int64_t number) {
  return fmt::format("{}-{}", prefix, number);
}

std::string index_path(const std::string& prefix) { return prefix + ".index"; }

std::string shard_path(const std::string& prefix, int32_t shard, int32_t num_shards) {
  return fmt::format("{}.data-{:05}-of-{:05}", prefix, shard, num_shards);
}

std::filesystem::path folder_of(const std::filesystem::path& prefix) {
  return prefix.has_parent_path() ? prefix.parent_path() : std::filesystem::path(".");
}

bool is_there(const std::string& path) {
  if (files::FileStore* const store = files::store_of(path))
    return store->look_at(path).has_value();
  std::error_code fault;
  // An error counts as "exists"; opening the file then reports it.
  return std::filesystem::exists(path, fault) || fault;
}

std::string another_place(const std::filesystem::path& path) {
  const bool is_copy = path.parent_path().parent_path().filename() == "host_copies";
  return files::is_remote(path) || is_copy ? "another folder in checkpoint.prefix"
                                           : "another run.project_dir";
}

void require_folder(const std::string& dir) {
  if (files::is_folder(dir)) return;
  const size_t scheme = dir.find(":/");
  throw Error(ExitCode::kInputMissing, "checkpoint",
              dir + ": not a folder" +
                  (!files::is_remote(dir) && scheme != std::string::npos && scheme < dir.find('/')
                       ? "; a store's is s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"
                       : ""));
}

std::string entries_path(const std::string& shard_path) {
  return fmt::format("{}{}{}", shard_path, kEntriesSuffix, kTemporarySuffix);
}

std::string_view file_ending(std::string_view name) {
  for (const std::string_view form : {std::string_view(".index"), kShardForm})
    if (name.size() > form.size() && has_form(name.substr(name.size() - form.size()), form))
      return name.substr(name.size() - form.size());
  return {};
}

std::optional<FileName> parse_file_name(std::string_view name) {
  const std::string_view ending = file_ending(name);
  const std::string_view stem = name.substr(0, name.size() - ending.size());
  // The last dash separates the number; a prefix may have dashes itself.
  const size_t dash = stem.rfind('-');
  if (ending.empty() || dash == std::string_view::npos || dash == 0) return std::nullopt;
  const std::optional<int64_t> number = parse_number(stem.substr(dash + 1));
  if (!number) return std::nullopt;
  return FileName{std::string(stem.substr(0, dash)), *number, std::string(ending.substr(1))};
}

std::optional<FileName> parse_save_name(const std::filesystem::path& prefix) {
  return parse_file_name(index_path(prefix.filename().string()));
}

/// Returns the part before a checkpoint file's ending; nullopt if the name has no such ending.
static std::optional<std::string_view> before_file_ending(std::string_view name) {
  std::string_view stem = name;
  if (stem.ends_with(kTemporarySuffix)) stem.remove_suffix(kTemporarySuffix.size());
  stem.remove_suffix(file_ending(stem).size());
  return stem.size() < name.size() ? std::optional(stem) : std::nullopt;
}

std::optional<std::string> fault_of_prefix_name(std::string_view name) {
  if (const auto stem = before_file_ending(name))
    return fmt::format("ends in '{}', which is added automatically: give '{}'",
                       name.substr(stem->size()), *stem);
  if (name.find_first_of(kPatternLetters) != std::string_view::npos)
    return "contains one of \\ * ? [ ], which TensorFlow reads as a pattern";
  return std::nullopt;
}

std::string_view without_temporary_suffix(std::string_view name) {
  if (!name.ends_with(kTemporarySuffix)) return name;
  name.remove_suffix(kTemporarySuffix.size());
  if (name.ends_with(kEntriesSuffix)) name.remove_suffix(kEntriesSuffix.size());
  return name;
}

CheckpointFolder::CheckpointFolder(const std::filesystem::path& dir) : dir_(dir) {
  // Files of a store are looked at again with every listing.
  if (files::is_remote(dir)) files::writable_store_of(dir).forget((dir / "").string());
  for (const std::string& name : files::list(dir)) {
    if (name.ends_with(kRecordSuffix)) {
      const std::string_view bare =
          std::string_view(name).substr(0, name.size() - kRecordSuffix.size());
      if (const auto parts = parse_save_name(bare)) {
        SaveFiles& save = saves_[parts->prefix][parts->number];
        save.has_record = true;
        save.names.insert(save.names.begin(), name);
      }
      continue;
    }
    const std::string_view stem = without_temporary_suffix(name);
    const std::optional<FileName> parts = parse_file_name(stem);
    if (stem.size() < name.size()) {
      if (parts || stem == kStateFile) temporary_.push_back(name);
    } else if (parts) {
      SaveFiles& save = saves_[parts->prefix][parts->number];
      const bool is_index = parts->rest == kIndexSuffix;
      save.has_index = save.has_index || is_index;
      const auto place =
          is_index ? save.names.begin() + (save.has_record ? 1 : 0) : save.names.end();
      save.names.insert(place, name);
    }
  }
}

const SaveFiles* CheckpointFolder::find(const std::string& prefix) const {
  const std::optional<FileName> parts = parse_save_name(prefix);
  if (!parts || !saves_.contains(parts->prefix)) return nullptr;
  const auto& by_number = saves_.at(parts->prefix);
  const auto save = by_number.find(parts->number);
  return save == by_number.end() ? nullptr : &save->second;
}

std::vector<SaveName> CheckpointFolder::committed(std::string_view prefix_name) const {
  std::vector<SaveName> found;
  for (const auto& [prefix, by_number] : saves_)
    for (const auto& [number, save] : by_number)
      if (save.has_index && (prefix_name.empty() || prefix == prefix_name))
        found.push_back({numbered((dir_ / prefix).string(), number), number});
  // Checkpoints of one number stay in the order of their prefixes.
  std::ranges::stable_sort(found, {}, &SaveName::number);
  return found;
}

std::vector<std::string> CheckpointFolder::undone() const {
  std::vector<std::string> found;
  for (const auto& [prefix, by_number] : saves_)
    for (const auto& [number, save] : by_number)
      if (save.has_record && !save.has_index)
        found.push_back(numbered((dir_ / prefix).string(), number));
  return found;
}

void CheckpointFolder::remove(const std::string& prefix) const {
  const SaveFiles* const save = find(prefix);
  for (size_t i = 0; save != nullptr && i < save->names.size(); ++i) {
    files::remove_file(dir_ / save->names[i]);
    if (i == 0 && save->has_index) files::sync_folder(dir_);
  }
}

std::vector<SaveName> find_saves(const std::filesystem::path& dir, std::string_view prefix_name) {
  return CheckpointFolder(dir).committed(prefix_name);
}

Commit newest_commit(const std::filesystem::path& dir, std::string_view prefix_name) {
  const std::vector<SaveName> saves = find_saves(dir, prefix_name);
  if (saves.empty()) return {};
  const auto written = files::written_at(index_path(saves.back().prefix));
  return {saves.back().prefix, written ? written->time_since_epoch().count() : 0};
}

// A name of the state file may be absolute; only its last part decides.
std::vector<SaveName> named_by(const StateFile& state, const std::filesystem::path& prefix) {
  std::vector<std::string> paths = state.all;
  paths.push_back(state.newest);
  std::vector<SaveName> saves;
  for (const std::string& path : paths) {
    const std::optional<FileName> parts = parse_save_name(path);
    if (parts && parts->prefix == prefix.filename().string())
      saves.push_back({numbered(prefix.string(), parts->number), parts->number});
  }
  return saves;
}

constexpr size_t kMostNamed = 5;

[[noreturn]] static void refuse(ExitCode code, const std::string& message) {
  throw Error(code, "checkpoint", message);
}

/// Returns the folder's checkpoints for a message: "there are DIR/a-1, ..., DIR/a-9", or why there
/// are none.
static std::string saves_text(const std::filesystem::path& folder, std::string_view prefix_name) {
  if (!files::is_folder(folder)) return fmt::format("no folder {}", folder.string());
  std::vector<SaveName> saves = find_saves(folder, prefix_name);
  if (saves.empty()) saves = find_saves(folder);
  if (saves.empty()) return fmt::format("no checkpoints in {}", folder.string());
  std::string names;
  for (size_t i = saves.size() - std::min(saves.size(), kMostNamed); i < saves.size(); ++i)
    names += (names.empty() ? "" : ", ") + saves[i].prefix;
  return fmt::format("available: {}{}", saves.size() > kMostNamed ? "..., " : "", names);
}

[[noreturn]] static void refuse_folder(const std::filesystem::path& folder) {
  std::string text = saves_text(folder, "");
  refuse(ExitCode::kUsage, fmt::format("'{}' is a folder; name a checkpoint by folder, prefix and "
                                       "number, DIR/model.ckpt-1200: {}",
                                       folder.string(), text));
}

// Most specific hint first: a file's ending, a folder, then names nearby.
std::string require_save(const std::string& prefix) {
  if (prefix.empty())
    refuse(ExitCode::kUsage, "'' is not a checkpoint name; name it as DIR/model.ckpt-1200");
  if (is_there(index_path(prefix))) return prefix;
  if (const auto stem = before_file_ending(prefix))
    refuse(ExitCode::kUsage, fmt::format("'{}' is a file; name a checkpoint without '{}': {}",
                                         prefix, prefix.substr(stem->size()), *stem));
  if (files::is_folder(prefix)) refuse_folder(prefix);
  const std::filesystem::path path(prefix);
  const std::string name = path.filename().string();
  const auto parts = parse_save_name(path);
  const bool lacks_number = !parts && !find_saves(folder_of(path), name).empty();
  refuse(ExitCode::kInputMissing,
         fmt::format("checkpoint '{}' not found{}; {}", prefix,
                     lacks_number ? ": its number is missing" : "",
                     saves_text(folder_of(path), parts ? parts->prefix : name)));
}

std::string require_new_prefix(const std::string& prefix) {
  const std::string name = std::filesystem::path(prefix).filename().string();
  if (name.empty() || name == "." || name == ".." || files::is_folder(prefix))
    refuse(ExitCode::kUsage,
           fmt::format("'{}' is a folder; checkpoints need a file name too: {}", prefix,
                       (std::filesystem::path(prefix) / "model.ckpt").string()));
  if (const auto fault = fault_of_prefix_name(name))
    refuse(ExitCode::kUsage, fmt::format("the checkpoint name '{}' {}", prefix, *fault));
  return prefix;
}

}  // namespace lockstep::checkpoint
