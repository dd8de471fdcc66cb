// Local paths are expanded here, remote ones in remote_tree.cpp.
#include "data/files/glob.h"

#include <algorithm>
#include <cctype>

#include <glob.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/nearest_word.h"
#include "data/files/remote_tree.h"

namespace lockstep::data {
namespace {

/// Frees what glob() allocated.
struct GlobResult {
  glob_t found{};
  ~GlobResult() { ::globfree(&found); }
};

/// Throws Error(kInputMissing) with the nearest name. `kind`: file or folder.
[[noreturn]] void say_there_is_none(const std::string& path, const std::string& kind) {
  std::string hint;
  if (!files::is_remote(path)) {
    const std::filesystem::path asked(path);
    const std::filesystem::path folder = asked.has_parent_path() ? asked.parent_path() : ".";
    std::error_code ignored;
    hint = did_you_mean(asked.filename().string(), files::list(folder));
    if (!std::filesystem::exists(folder, ignored) && path.find_first_of("*?[") == std::string::npos)
      hint = " (nor is its folder)";
    if (asked.is_relative())
      hint.insert(0, " in " + std::filesystem::current_path(ignored).string());
  }
  throw Error(ExitCode::kInputMissing, "data", path + ": no such " + kind + hint);
}

[[noreturn]] void say_nothing_matches(const std::string& path) {
  if (is_folder(path))
    throw Error(ExitCode::kInputMissing, "data",
                path + ": the folder holds no files; name the folder or the files of the data");
  say_there_is_none(path, "file");
}

/// Expands a path of this host.
std::vector<std::filesystem::path> expand_here(const std::string& path) {
  std::vector<std::filesystem::path> all;
  if (std::filesystem::is_directory(path)) {
    for (const std::string& name : files::list(path))
      if (!name.starts_with(".") &&
          !std::filesystem::is_directory(std::filesystem::path(path) / name))
        all.push_back(std::filesystem::path(path) / name);
  } else if (std::filesystem::exists(path)) {
    all.emplace_back(path);
  } else {
    GlobResult result;
    ::glob(path.c_str(), 0, nullptr, &result.found);
    for (size_t i = 0; i < result.found.gl_pathc; ++i)
      if (!std::filesystem::is_directory(result.found.gl_pathv[i]))
        all.emplace_back(result.found.gl_pathv[i]);
  }
  return all;
}

/// True if a link leads to a folder that contains it: following it would never end.
bool goes_round(const std::filesystem::path& link) {
  std::error_code fault;
  const auto target = std::filesystem::canonical(link, fault);
  const auto folder = std::filesystem::canonical(link.parent_path(), fault);
  return std::mismatch(target.begin(), target.end(), folder.begin(), folder.end()).first ==
         target.end();
}

/// Adds the files at any depth below a folder, following links.
void add_files_below(const std::filesystem::path& folder, TakesFile takes, Subfolder* all) {
  std::error_code fault;
  using std::filesystem::directory_options;
  std::filesystem::recursive_directory_iterator entry(
      folder, directory_options::follow_directory_symlink, fault);
  for (; !fault && entry != std::filesystem::recursive_directory_iterator();
       entry.increment(fault)) {
    const bool is_hidden = entry->path().filename().native().starts_with('.');
    if (!is_hidden && !entry->is_directory(fault)) all->add(entry->path(), takes);
    // disable_recursion_pending() skips hidden folders and circular links.
    if (is_hidden || (entry->is_symlink(fault) && goes_round(entry->path())))
      entry.disable_recursion_pending();
  }
  if (fault)
    throw Error(ExitCode::kIo, "data", folder.string() + ": cannot be listed: " + fault.message());
}

}  // namespace

std::vector<std::filesystem::path> expand_files(const std::string& path) {
  std::vector<std::filesystem::path> all =
      files::is_remote(path) ? expand_remote(path) : expand_here(path);
  if (all.empty()) say_nothing_matches(path);
  // Sorted, because the order of the files is the order of the samples.
  std::sort(all.begin(), all.end());
  return all;
}

bool is_folder(const std::string& path) {
  return files::is_remote(path) ? is_remote_folder(path) : std::filesystem::is_directory(path);
}

void require_folder(const std::string& path) {
  if (files::is_remote(path)) return;
  using std::filesystem::file_type;
  std::error_code ignored;
  const file_type type = std::filesystem::status(path, ignored).type();
  if (type == file_type::not_found) say_there_is_none(path, "folder");
  if (type == file_type::directory || type == file_type::none) return;  // none: listing says why
  throw Error(ExitCode::kInputMissing, "data", path + ": is a file, not a folder");
}

bool holds_folders(const std::string& path) {
  if (files::is_remote(path)) return remote_holds_folders(path);
  const std::vector<std::string> names = files::list(path);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return !name.starts_with(".") &&
           std::filesystem::is_directory(std::filesystem::path(path) / name);
  });
}

std::string lower_ending(const std::filesystem::path& file) {
  std::string ending = file.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending;
}

void Subfolder::add(const std::filesystem::path& file, TakesFile takes) {
  if (takes(file))
    files.push_back(file);
  else
    ++others[lower_ending(file)];
}

std::vector<Subfolder> files_by_folder(const std::string& folder, TakesFile takes) {
  std::vector<Subfolder> all;
  if (files::is_remote(folder)) {
    all = remote_files_by_folder(folder, takes);
  } else {
    for (const std::string& name : files::list(folder)) {
      const std::filesystem::path path = std::filesystem::path(folder) / name;
      if (!name.starts_with(".") && std::filesystem::is_directory(path))
        add_files_below(path, takes, &all.emplace_back(Subfolder{.name = name}));
    }
  }
  for (Subfolder& one : all) std::sort(one.files.begin(), one.files.end());
  return all;
}

}  // namespace lockstep::data
