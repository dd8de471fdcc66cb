#pragma once

#include <map>
#include <string>
#include <string_view>

#include "checkpoint/format/bundle_encoding.h"

namespace lockstep::checkpoint {

/// Rows of an index table, in the table's order, which is by bytes.
using TableRows = std::map<std::string, std::string>;

/// Returns the file's bytes. Equal rows give equal bytes.
inline std::string encode_table(const TableRows& rows) {
  std::string bytes;
  TableEncoder encoder([&](std::string_view piece) { bytes += piece; });
  for (const auto& [key, value] : rows) encoder.add(key, value);
  encoder.finish();
  return bytes;
}

/// Returns all rows at once.
inline TableRows decode_table(std::string_view bytes) {
  TableRows rows;
  for_each_row(bytes, [&](const std::string& key, std::string_view value) {
    rows.emplace_hint(rows.end(), key, value);
  });
  return rows;
}

}  // namespace lockstep::checkpoint
