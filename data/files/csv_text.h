#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// One record of a CSV file.
struct CsvRow {
  int64_t line = 0;  ///< line on which it begins, from 1
  std::vector<std::string> fields;
};

/// Parses a text by RFC 4180. Fields are separated by commas. Fields with commas, quotes (doubled)
/// or line breaks are in double quotes. Lines end with \n or \r\n. Empty lines are skipped. Throws
/// Error(kBadData) with the name `file` and the line.
std::vector<CsvRow> parse_csv(std::string_view text, const std::string& file);

}  // namespace lockstep::data
