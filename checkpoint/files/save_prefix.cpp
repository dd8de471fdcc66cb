#include "checkpoint/files/save_prefix.h"

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/files/save_files.h"

namespace lockstep::checkpoint {
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
