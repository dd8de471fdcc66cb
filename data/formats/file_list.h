#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/files.h"

/// Lists of the files of a data set: facts, patterns and folders, on this host and in stores.
namespace lockstep::data {

/// Files of a data set, listed once for all ranks: rank 0 lists them, the others parse its text().
struct FoundFiles {
  std::string format;                    ///< name of the format's row: idx, cifar10, ...
  std::vector<files::FileFacts> files;   ///< in record order
  std::vector<int64_t> labels;           ///< per file; empty unless folders are the classes
  std::vector<std::string> class_names;  ///< names of those folders, indexed by `labels`
  /// Further files: targets, and images that other files name.
  std::vector<files::FileFacts> others;

  std::vector<std::filesystem::path> paths() const;

  /// Returns all of it as one text.
  std::string text() const;
  /// Parses what text() returned, and makes the facts about files in stores known to these stores.
  static FoundFiles parse(std::string_view text);

  bool operator==(const FoundFiles& other) const = default;
};

/// Returns the facts of a file in a store; for a file of this host only the path.
files::FileFacts found_file(const std::filesystem::path& path);

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
/// True for an image's ending: .jpg, .jpeg, .png, in any case.
bool is_image_name(const std::filesystem::path& file);

/// Returns the subfolders of a folder, sorted by name, without hidden ones, each with the files
/// that `takes` accepts. Empty if `folder` is missing.
std::vector<Subfolder> files_by_folder(const std::string& folder, TakesFile takes);

}  // namespace lockstep::data
