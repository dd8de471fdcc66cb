#include "base/yaml/path_beside.h"

#include <glob.h>

#include "base/files/file_store.h"

namespace lockstep {
namespace {

/// True if a file exists or a pattern matches.
bool names_something(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return true;
  glob_t found{};
  const bool matches = ::glob(path.c_str(), GLOB_NOSORT, nullptr, &found) == 0;
  ::globfree(&found);
  return matches;
}

}  // namespace

std::filesystem::path path_beside(const YamlDocument& document,
                                  const std::filesystem::path& named) {
  if (named.empty() || named.is_absolute() || files::is_remote(named) || names_something(named))
    return named;
  const std::filesystem::path beside = std::filesystem::path(document.file()).parent_path() / named;
  return names_something(beside) ? beside : named;
}

}  // namespace lockstep
