#include "base/text.h"

namespace lockstep {

std::string_view trimmed(std::string_view text, std::string_view blanks) {
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

std::string first_few(const std::vector<std::string>& items, size_t most) {
  if (items.size() <= most) return fmt::format("{}", fmt::join(items, ", "));
  const auto end = items.begin() + static_cast<std::ptrdiff_t>(most);
  return fmt::format("{} and {} more", fmt::join(items.begin(), end, ", "), items.size() - most);
}

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string field = "\"";
  for (const char letter : text) field.append(letter == '"' ? 2 : 1, letter);
  return field + "\"";
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& field : fields) line += csv_field(field) + ",";
  if (!line.empty()) line.pop_back();
  return line + "\n";
}

}  // namespace lockstep
