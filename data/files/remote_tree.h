#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/files/glob.h"

/// What data/files/glob.h promises, for paths in stores, where a listing gives all files below.
namespace lockstep::data {

/// Not sorted; may be empty.
std::vector<std::filesystem::path> expand_remote(const std::string& path);
bool is_remote_folder(const std::string& path);
bool remote_holds_folders(const std::string& path);
/// Sorted by name, the files of each not.
std::vector<Subfolder> remote_files_by_folder(const std::string& folder, TakesFile takes);

}  // namespace lockstep::data
