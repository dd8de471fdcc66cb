#include "base/yaml/source_location.h"

#include <fmt/format.h>

namespace lockstep {

std::string SourceLocation::text() const {
  return line > 0 ? fmt::format("{}:{}", file, line) : file;
}

SourceLocation location_of(const YamlDocument& document, const YAML::Node& node) {
  Fault fault = document.fault_at(node, "");
  return {std::move(fault.file), fault.line, fault.column, std::move(fault.source_line)};
}

}  // namespace lockstep
