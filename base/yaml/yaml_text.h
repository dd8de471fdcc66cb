#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <yaml-cpp/mark.h>

#include "base/diagnostics.h"

namespace lockstep {

inline constexpr int64_t kMaxYamlBytes = 1 << 20;

/// False, with a fault that names `name`, if the text has more than `max_bytes` or is no UTF-8.
bool text_is_sound(const std::string& name, const std::string& text, int64_t max_bytes,
                   Diagnostics* faults);

/// Of a line that is shown.
inline constexpr size_t kMaxShownBytes = 160;
/// A line of `text`, counted from 0, without its end; empty where there is none.
std::string_view line_of(std::string_view text, int64_t line);

/// Parses `yaml` and looks at its events (base/yaml/yaml_check.h). True if it holds a document.
/// Throws YamlCheck::Stop and what the parser throws.
bool check_events(const std::string& yaml,
                  const std::function<void(const YAML::Mark&, std::string)>& report);

/// The parser's message, or a better one for this source line.
std::string parser_hint(std::string_view line, const std::string& message);

}  // namespace lockstep
