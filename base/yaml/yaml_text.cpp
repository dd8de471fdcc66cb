#include "base/yaml/yaml_text.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/yaml/yaml_check.h"

namespace lockstep {
namespace {

/// Returns the offset of the first byte that is not valid UTF-8, or npos.
size_t first_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    // Shortest forms only: 0xC0 and 0xC1 would start overlong sequences, 0xF5 and above exceed
    // U+10FFFF.
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xC2 && lead < 0xE0 ? 2
                          : lead >= 0xE0 && lead < 0xF0 ? 3
                          : lead >= 0xF0 && lead < 0xF5 ? 4
                                                        : 0;
    if (length == 0 || i + length > text.size()) return i;
    for (size_t k = 1; k < length; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return i;
    i += length;
  }
  return std::string_view::npos;
}

}  // namespace

bool text_is_sound(const std::string& name, const std::string& text, int64_t max_bytes,
                   Diagnostics* faults) {
  if (static_cast<int64_t>(text.size()) > max_bytes) {
    faults->add({name, 0, 0, "has more than 1 MiB", ""});
    return false;
  }
  const size_t bad = first_invalid_utf8(text);
  if (bad == std::string_view::npos) return true;
  const auto line =
      1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n');
  // Without the source line, since its bytes could confuse a terminal or a log reader.
  faults->add(
      {name, line, 0, fmt::format("byte {} is not valid UTF-8: save it as UTF-8", bad), ""});
  return false;
}

std::string_view line_of(std::string_view text, int64_t line) {
  for (; line > 0; --line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return "";
    text.remove_prefix(end + 1);
  }
  text = text.substr(0, text.find('\n'));
  if (text.ends_with('\r')) text.remove_suffix(1);
  return text;
}

bool check_events(const std::string& yaml,
                  const std::function<void(const YAML::Mark&, std::string)>& report) {
  YamlCheck check(report);
  std::istringstream stream(yaml);
  YAML::Parser parser(stream);
  while (parser.HandleNextDocument(check)) {
  }
  return check.num_documents() > 0;
}

std::string parser_hint(std::string_view line, const std::string& message) {
  // yaml-cpp's own messages do not mention tabs or the special meaning of * and &.
  if (line.find('\t') != std::string_view::npos)
    return "a tab stands in this line: indent with spaces";
  if (message.find("anchor") != std::string::npos || message.find("alias") != std::string::npos)
    return message + " (a text that begins with '*' or '&' must be quoted)";
  return message;
}

}  // namespace lockstep
