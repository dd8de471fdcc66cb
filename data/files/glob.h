#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::data {

/// The files that a path names, sorted: itself, those directly in a folder (hidden ones left out),
/// or those that match a pattern (`*`, `?`, `[a-z]`, `**` as `*`; with or without an extension);
/// in a store (s3://bucket/...) what stands before a slash is a folder.
/// Throws Error(kInputMissing) with the nearest name if there is none.
std::vector<std::filesystem::path> expand_files(const std::string& path);

/// Whether the path is a folder that holds folders, hidden ones left out.
bool holds_folders(const std::string& path);
/// Whether it is a folder.
bool is_folder(const std::string& path);
/// Throws Error(kInputMissing) with the nearest name if there is no such folder, or if it is a
/// file. Paths in stores pass: a store has only files.
void require_folder(const std::string& path);

using TakesFile = bool (*)(const std::filesystem::path& file);
/// Counts of files by ending, in lower case: ".webp".
using EndingCounts = std::map<std::string, int64_t>;

/// A folder and the files anywhere below it, sorted; hidden files and folders are left out.
struct Subfolder {
  std::string name;
  std::vector<std::filesystem::path> files;
  EndingCounts others;  ///< files that were not taken

  void add(const std::filesystem::path& file, TakesFile takes);
};

/// Ending of the name in lower case: ".jpg"; empty if it has none.
std::string lower_ending(const std::filesystem::path& file);

/// The folders in a folder, sorted by name, hidden ones left out, with the files that `takes`
/// takes. No folder: empty.
std::vector<Subfolder> files_by_folder(const std::string& folder, TakesFile takes);

}  // namespace lockstep::data
