#include "data/files/remote_tree.h"

#include <algorithm>
#include <map>

#include <fnmatch.h>

#include "base/files/file_store.h"

namespace lockstep::data {
namespace {

/// Returns the folder with a trailing slash, since a store has no folders but only prefixes.
std::string with_slash(const std::string& folder) {
  return folder.ends_with('/') ? folder : folder + "/";
}

/// Returns the files below a folder, relative to it.
std::vector<std::string> names_below(const std::string& folder) {
  std::vector<std::string> names;
  for (const files::FileFacts& facts : files::store_of(folder)->list(folder))
    names.push_back(facts.path.substr(folder.size()));
  return names;
}

}  // namespace

std::vector<std::filesystem::path> expand_remote(const std::string& path) {
  std::vector<std::filesystem::path> all;
  files::FileStore& store = *files::store_of(path);
  if (const size_t wild = path.find_first_of("*?["); wild != std::string::npos) {
    // A store lists by prefix: everything before the first wildcard narrows the listing.
    for (const files::FileFacts& facts : store.list(path.substr(0, wild)))
      if (::fnmatch(path.c_str(), facts.path.c_str(), FNM_PATHNAME | FNM_PERIOD) == 0)
        all.emplace_back(facts.path);
  } else if (!path.ends_with('/') && store.look_at(path)) {
    all.emplace_back(path);
  } else {
    for (const std::string& name : names_below(with_slash(path)))
      if (!name.starts_with('.') && name.find('/') == std::string::npos)
        all.emplace_back(with_slash(path) + name);
  }
  return all;
}

bool is_remote_folder(const std::string& path) {
  return path.find_first_of("*?[") == std::string::npos && !names_below(with_slash(path)).empty();
}

bool remote_holds_folders(const std::string& path) {
  if (path.find_first_of("*?[") != std::string::npos) return false;
  const std::vector<std::string> names = names_below(with_slash(path));
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return !name.starts_with('.') && name.find('/') != std::string::npos;
  });
}

std::vector<Subfolder> remote_files_by_folder(const std::string& folder, TakesFile takes) {
  std::map<std::string, Subfolder> by_name;
  for (const std::string& name : names_below(with_slash(folder))) {
    const size_t slash = name.find('/');
    // Hidden files, and files in hidden folders.
    const bool is_hidden = name.starts_with('.') || name.find("/.") != std::string::npos;
    if (is_hidden || slash == std::string::npos) continue;
    Subfolder& one = by_name[name.substr(0, slash)];
    one.name = name.substr(0, slash);
    if (!name.ends_with('/')) one.add(with_slash(folder) + name, takes);
  }
  std::vector<Subfolder> all;
  for (auto& [name, one] : by_name) all.push_back(std::move(one));
  return all;
}

}  // namespace lockstep::data
