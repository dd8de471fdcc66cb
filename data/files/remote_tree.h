#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/files/glob.h"

/// Functions of data/files/glob.h for paths in stores, where a listing returns all files below a
/// folder.
namespace lockstep::data {

/// Returns the files that a path names, as expand_files(). Not sorted; may be empty.
std::vector<std::filesystem::path> expand_remote(const std::string& path);
bool is_remote_folder(const std::string& path);
bool remote_holds_folders(const std::string& path);
/// Returns the subfolders sorted by name, with unsorted files.
std::vector<Subfolder> remote_files_by_folder(const std::string& folder, TakesFile takes);

}  // namespace lockstep::data
