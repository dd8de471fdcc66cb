#pragma once

#include <filesystem>
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

/// Names of the folders in a folder, sorted, hidden ones left out, and the files anywhere below
/// each that `takes` takes, sorted too. No folder: empty.
struct Subfolder {
  std::string name;
  std::vector<std::filesystem::path> files;
};
using TakesFile = bool (*)(const std::filesystem::path& file);
std::vector<Subfolder> files_by_folder(const std::string& folder, TakesFile takes);

}  // namespace lockstep::data
