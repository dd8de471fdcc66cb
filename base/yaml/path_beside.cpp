#include "base/yaml/path_beside.h"

namespace lockstep {

std::filesystem::path path_beside(const YamlDocument& document,
                                  const std::filesystem::path& named) {
  std::error_code ignored;
  if (named.empty() || named.is_absolute() || std::filesystem::exists(named, ignored)) return named;
  const std::filesystem::path beside = std::filesystem::path(document.file()).parent_path() / named;
  return std::filesystem::exists(beside, ignored) ? beside : named;
}

}  // namespace lockstep
