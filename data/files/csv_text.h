#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// One record of a CSV file.
struct CsvRow {
  int64_t line = 0;  ///< on which it begins, from 1
  std::vector<std::string> fields;
};

/// Rows of a text as RFC 4180 has them: fields between commas, in double quotes where they hold
/// commas, quotes (doubled) or line breaks; lines end with \n or \r\n. Empty lines are left out.
/// Throws Error(kBadData) that names `file` and line.
std::vector<CsvRow> parse_csv(std::string_view text, const std::string& file);

}  // namespace lockstep::data
