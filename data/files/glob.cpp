#include "data/files/glob.h"

#include <algorithm>

#include <glob.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/nearest_word.h"

namespace lockstep::data {
namespace {

/// Gives back what glob() took.
struct GlobResult {
  glob_t found{};
  ~GlobResult() { ::globfree(&found); }
};

[[noreturn]] void say_nothing_matches(const std::string& path) {
  const std::filesystem::path asked(path);
  const std::filesystem::path folder = asked.has_parent_path() ? asked.parent_path() : ".";
  std::string hint = did_you_mean(asked.filename().string(), files::list(folder));
  if (!std::filesystem::exists(folder) && path.find_first_of("*?[") == std::string::npos)
    hint = " (nor is its folder)";
  throw Error(ExitCode::kInputMissing, "data", path + ": no such file" + hint);
}

}  // namespace

std::vector<std::filesystem::path> expand_files(const std::string& path) {
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
  if (all.empty()) say_nothing_matches(path);
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace lockstep::data
