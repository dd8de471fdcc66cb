#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <yaml-cpp/mark.h>

#include "base/diagnostics.h"

/// Checks of a YAML text before and during parsing.
namespace lockstep {

/// Exception for a text that must not be read further.
struct YamlStop {
  YAML::Mark mark;
  std::string message;
};

inline constexpr int64_t kMaxYamlBytes = 1 << 20;

/// True if the text has at most `max_bytes` and is valid UTF-8. Otherwise adds a fault with `name`.
bool text_is_sound(const std::string& name, const std::string& text, int64_t max_bytes,
                   Diagnostics* faults);

/// Longest line that messages show, in bytes.
inline constexpr size_t kMaxShownBytes = 160;
/// Returns a line of `text`, counted from 0, without its end; empty if there is none.
std::string_view line_of(std::string_view text, int64_t line);

/// Parses `yaml` without building a tree. It finds faults that the parser accepts, and stops texts
/// whose tree would be too large: more than 100,000 nodes or 64 levels. A node is a scalar, a list
/// or a map; keys count too. An alias counts as everything that it stands for. So a few lines of
/// nested aliases cannot unfold into millions of nodes.
///
/// `report` is called for each fault after which reading can continue. These are duplicate keys,
/// merge keys, and keys that are not plain words. Returns true if there is a document. Throws
/// YamlStop and the parser's exceptions.
bool check_events(const std::string& yaml,
                  const std::function<void(const YAML::Mark&, std::string)>& report);

/// Returns the parser's message, or a better one for this source line.
std::string parser_hint(std::string_view line, const std::string& message);

}  // namespace lockstep
