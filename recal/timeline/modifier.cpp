#include "recal/timeline/modifier.h"

#include <fmt/format.h>

namespace lockstep::recal {

std::string Place::text() const { return line > 0 ? fmt::format("{}:{}", file, line) : file; }

Place place_of(const YamlDocument& document, const YAML::Node& node) {
  Fault fault = document.fault_at(node, "");
  return {std::move(fault.file), fault.line, fault.column, std::move(fault.source_line)};
}

}  // namespace lockstep::recal
