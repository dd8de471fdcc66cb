#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

/// Small functions for texts: trimming, splitting, lines of CSV files.
namespace lockstep {

/// Returns the text without blanks at both ends.
std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\r\n");

/// Returns the parts of a text, by default its lines. A separator at the end adds no empty part.
std::vector<std::string> split(std::string_view text, char separator = '\n');

/// Returns a list for messages, with the first `most` items: "a, b and 3 more".
std::string first_few(const std::vector<std::string>& items, size_t most);

/// Returns a field of a CSV file, quoted if necessary (RFC 4180).
std::string csv_field(std::string_view text);
/// Returns a line of a CSV file with its line break.
std::string csv_line(const std::vector<std::string>& fields);
/// Returns the line of values in {fmt}'s default format: numbers that read back exactly.
template <typename... Values>
std::string csv_line_of(const Values&... values) {
  return csv_line({fmt::format("{}", values)...});
}

}  // namespace lockstep
