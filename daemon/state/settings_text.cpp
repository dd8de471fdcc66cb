#include "daemon/state/settings_text.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

// Two forms of the same settings: short lines for terminal and log, and the full list for
// TensorBoard.
namespace lockstep::daemon {
namespace {

constexpr size_t kLongestLine = 400;
constexpr size_t kLongestValue = 80;

struct Setting {
  std::string_view section;  ///< empty: a key of the top level
  std::string text;          ///< key=value
};

/// Replaces line breaks by blanks and limits the length.
std::string shown(std::string_view value) {
  std::string text(value.substr(0, kLongestValue));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  return value.size() > kLongestValue ? text + "..." : text;
}

/// Splits "section.key=value". A key of the top level has no section.
Setting parse(std::string_view setting) {
  const size_t equals = setting.find('=');
  const std::string_view path = setting.substr(0, equals);
  const size_t end = path.find_first_of(".[");
  const bool is_top_level = end == path.npos;
  const std::string_view key = is_top_level ? path : path.substr(end + (path[end] == '.' ? 1 : 0));
  const std::string_view value = equals == setting.npos ? "" : setting.substr(equals + 1);
  return {is_top_level ? "" : path.substr(0, end), fmt::format("{}={}", key, shown(value))};
}

}  // namespace

std::vector<std::string> settings_by_section(const std::vector<std::string>& settings) {
  std::vector<std::string> lines;
  std::string_view section = "\n";  // no section yet
  size_t num_left_out = 0;
  const auto end_line = [&] {
    if (num_left_out > 0) lines.back() += fmt::format(", and {} more", num_left_out);
    num_left_out = 0;
  };
  for (const std::string& one : settings) {
    const Setting setting = parse(one);
    const bool is_first = setting.section != section;
    if (is_first) {
      end_line();
      section = setting.section;
      lines.push_back(section.empty() ? setting.text
                                      : fmt::format("{}: {}", section, setting.text));
    } else if (lines.back().size() + setting.text.size() > kLongestLine) {
      ++num_left_out;
    } else {
      lines.back() += ", " + setting.text;
    }
  }
  end_line();
  return lines;
}

std::string settings_text(const std::vector<std::string>& settings) {
  return fmt::format("```\n{}\n```\n", fmt::join(settings, "\n"));
}

}  // namespace lockstep::daemon
