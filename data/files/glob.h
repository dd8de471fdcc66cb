#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::data {

/// Returns the files that a path names, sorted. These are the path itself, the files directly in a
/// folder (without hidden ones), or those that match a pattern. Patterns have `*`, `?`, `[a-z]`,
/// and `**` means `*`. They work with or without an extension. In a store (s3://bucket/...) a
/// folder is what precedes a slash. Throws Error(kInputMissing) with the nearest name if there is
/// none.
std::vector<std::filesystem::path> expand_files(const std::string& path);

/// True if the path is a folder with subfolders; hidden ones do not count.
bool holds_folders(const std::string& path);
/// True if the path is a folder.
bool is_folder(const std::string& path);
/// Throws Error(kInputMissing) with the nearest name if there is no such folder, or if it is a
/// file. Paths in stores pass: a store has only files.
void require_folder(const std::string& path);

using TakesFile = bool (*)(const std::filesystem::path& file);
/// Number of files per ending in lower case, such as ".webp".
using EndingCounts = std::map<std::string, int64_t>;

/// Folder with the files at any depth below it, sorted; hidden files and folders are left out.
struct Subfolder {
  std::string name;
  std::vector<std::filesystem::path> files;
  EndingCounts others;  ///< files that were not accepted

  void add(const std::filesystem::path& file, TakesFile takes);
};

/// Returns the ending of the name in lower case, such as ".jpg"; empty if it has none.
std::string lower_ending(const std::filesystem::path& file);

/// Returns the subfolders of a folder, sorted by name, without hidden ones, each with the files
/// that `takes` accepts. Empty if `folder` is missing.
std::vector<Subfolder> files_by_folder(const std::string& folder, TakesFile takes);

}  // namespace lockstep::data
