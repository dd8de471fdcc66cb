#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/yaml/yaml_document.h"

namespace lockstep {

/// Source location of a node that outlives the YAML tree. It is for faults that are found only when
/// the model is known.
struct SourceLocation {
  std::string file;
  int64_t line = 0;  ///< from 1; 0: unknown
  int64_t column = 0;
  std::string source_line;

  Fault fault(std::string message) const {
    return {file, line, column, std::move(message), source_line};
  }
  /// Returns file:line.
  std::string text() const;
};
SourceLocation location_of(const YamlDocument& document, const YAML::Node& node);

}  // namespace lockstep
