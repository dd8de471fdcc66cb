#include "checkpoint/format/checkpoint_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

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

int64_t written_at(const std::string& prefix) {
  std::error_code ignored;
  return std::filesystem::last_write_time(index_path(prefix), ignored).time_since_epoch().count();
}

std::string shard_path(const std::string& prefix, int32_t shard, int32_t num_shards) {
  return fmt::format("{}.data-{:05}-of-{:05}", prefix, shard, num_shards);
}

bool is_there(const std::string& path) {
  if (files::FileStore* const store = files::store_of(path))
    return store->look_at(path).has_value();
  std::error_code fault;
  // An error counts as "exists"; opening the file then reports it.
  return std::filesystem::exists(path, fault) || fault;
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

std::optional<std::string> fault_of_prefix_name(std::string_view name) {
  std::string_view stem = name;
  if (stem.ends_with(kTemporarySuffix)) stem.remove_suffix(kTemporarySuffix.size());
  stem.remove_suffix(file_ending(stem).size());
  if (stem.size() < name.size())
    return fmt::format("ends in '{}', which saves add themselves: give '{}'",
                       name.substr(stem.size()), stem);
  if (name.find_first_of(kPatternLetters) != std::string_view::npos)
    return "holds one of \\ * ? [ ], which TensorFlow takes for a pattern";
  return std::nullopt;
}

std::string_view without_temporary_suffix(std::string_view name) {
  if (!name.ends_with(kTemporarySuffix)) return name;
  name.remove_suffix(kTemporarySuffix.size());
  if (name.ends_with(kEntriesSuffix)) name.remove_suffix(kEntriesSuffix.size());
  return name;
}

std::vector<SaveName> find_saves(const std::filesystem::path& dir, std::string_view prefix_name) {
  std::vector<SaveName> saves;
  for (const std::string& name : files::list(dir)) {
    const std::optional<FileName> parts = parse_file_name(name);
    if (!parts || parts->rest != kIndexSuffix) continue;
    if (!prefix_name.empty() && parts->prefix != prefix_name) continue;
    saves.push_back({numbered((dir / parts->prefix).string(), parts->number), parts->number});
  }
  std::sort(saves.begin(), saves.end(), [](const SaveName& a, const SaveName& b) {
    return a.number != b.number ? a.number < b.number : a.prefix < b.prefix;
  });
  return saves;
}

// A name of the state file may be absolute; only its last part decides.
std::vector<SaveName> named_by(const StateFile& state, const std::filesystem::path& prefix) {
  std::vector<std::string> paths = state.all;
  paths.push_back(state.newest);
  std::vector<SaveName> saves;
  for (const std::string& path : paths) {
    const std::string name = std::filesystem::path(path).filename().string();
    const std::optional<FileName> parts = parse_file_name(index_path(name));
    if (parts && parts->prefix == prefix.filename().string())
      saves.push_back({numbered(prefix.string(), parts->number), parts->number});
  }
  return saves;
}

namespace {

constexpr size_t kMostNamed = 5;

[[noreturn]] void refuse(ExitCode code, const std::string& message) {
  throw Error(code, "checkpoint", message);
}

/// Returns the part before a checkpoint file's ending; nullopt if the name has no such ending.
std::optional<std::string_view> before_file_ending(std::string_view name) {
  const std::string_view whole = name;
  if (name.ends_with(kTemporarySuffix)) name.remove_suffix(kTemporarySuffix.size());
  name.remove_suffix(file_ending(name).size());
  return name.size() < whole.size() ? std::optional(name) : std::nullopt;
}

/// Returns the folder's checkpoints for a message: "there are DIR/a-1, ..., DIR/a-9", or why there
/// are none.
std::string saves_text(const std::filesystem::path& folder, std::string_view prefix_name) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    return fmt::format("there is no folder {}", folder.string());
  std::vector<SaveName> saves = find_saves(folder, prefix_name);
  if (saves.empty()) saves = find_saves(folder);
  if (saves.empty()) return fmt::format("{} holds no save", folder.string());
  std::string names;
  for (size_t i = saves.size() - std::min(saves.size(), kMostNamed); i < saves.size(); ++i)
    names += (names.empty() ? "" : ", ") + saves[i].prefix;
  return fmt::format("there {}: {}{}", saves.size() == 1 ? "is" : "are",
                     saves.size() > kMostNamed ? "..., " : "", names);
}

[[noreturn]] void refuse_folder(const std::filesystem::path& folder) {
  std::string text = saves_text(folder, "");
  refuse(ExitCode::kUsage,
         fmt::format("'{}' is a folder; a save is named by folder, prefix and number, "
                     "DIR/model.ckpt-1200: {}",
                     folder.string(), text));
}

std::filesystem::path folder_of(const std::filesystem::path& prefix) {
  return prefix.has_parent_path() ? prefix.parent_path() : std::filesystem::path(".");
}

}  // namespace

// Most specific hint first: a file's ending, a store, a folder, then names nearby.
std::string require_save(const std::string& prefix) {
  if (prefix.empty()) refuse(ExitCode::kUsage, "a save has a name: DIR/model.ckpt-1200, not ''");
  if (is_there(index_path(prefix))) return prefix;
  if (const auto stem = before_file_ending(prefix))
    refuse(ExitCode::kUsage, fmt::format("'{}' names a file; a save is named without '{}': {}",
                                         prefix, prefix.substr(stem->size()), *stem));
  if (files::is_remote(prefix))
    refuse(ExitCode::kInputMissing,
           fmt::format("there is no save '{}': its store has no {}; a save is named by folder, "
                       "prefix and number",
                       prefix, index_path(prefix)));
  std::error_code ignored;
  if (std::filesystem::is_directory(prefix, ignored)) refuse_folder(prefix);
  const std::filesystem::path path(prefix);
  const std::string name = path.filename().string();
  const auto parts = parse_file_name(index_path(name));
  const bool lacks_number = !parts && !find_saves(folder_of(path), name).empty();
  refuse(ExitCode::kInputMissing,
         fmt::format("there is no save '{}'{}; {}", prefix,
                     lacks_number ? ": its number is missing" : "",
                     saves_text(folder_of(path), parts ? parts->prefix : name)));
}

std::string require_new_prefix(const std::string& prefix) {
  const std::string name = std::filesystem::path(prefix).filename().string();
  std::error_code ignored;
  if (name.empty() || name == "." || name == ".." || std::filesystem::is_directory(prefix, ignored))
    refuse(ExitCode::kUsage,
           fmt::format("'{}' names a folder; saves need a file name too: {}", prefix,
                       (std::filesystem::path(prefix) / "model.ckpt").string()));
  if (const auto fault = fault_of_prefix_name(name))
    refuse(ExitCode::kUsage, fmt::format("the name '{}' of saves {}", prefix, *fault));
  return prefix;
}

}  // namespace lockstep::checkpoint
