#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

/// The sorted table of an index file: LevelDB's format, uncompressed (docs/checkpoint_format.md,
/// Index). Knows nothing of what keys and values mean.
namespace lockstep::checkpoint {

/// Ordered by bytes, as the table is.
using TableRows = std::map<std::string, std::string>;

/// Makes the table's bytes, row by row in ascending order of keys. Equal for equal rows.
class TableEncoder {
 public:
  TableEncoder();
  ~TableEncoder();
  TableEncoder(const TableEncoder&) = delete;
  TableEncoder& operator=(const TableEncoder&) = delete;

  void add(std::string_view key, std::string_view value);
  /// Once, after the last row.
  std::string finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// The file's bytes, equal for equal rows.
std::string encode_table(const TableRows& rows);

/// True if encode_table() gives these very bytes for the rows that they hold. Block checksums leave
/// the footer and the places of blocks open; this does not. Throws as for_each_row().
bool is_as_encoded(std::string_view bytes);

/// Calls use(key, value) for each row, in order. Throws std::runtime_error with the reason and the
/// offset where the table is not sound. Refuses tables whose rows unfold to more than 32 MiB and 16
/// times what the table has.
///
/// Not LevelDB's own reader: that one takes memory for a block before it knows that the file holds
/// it, and its checksums leave the footer and the empty metaindex block uncovered.
using UseRow = std::function<void(const std::string& key, std::string_view value)>;
void for_each_row(std::string_view bytes, const UseRow& use);

/// All rows at once. For tests: takes a multiple of the table's bytes.
TableRows decode_table(std::string_view bytes);

}  // namespace lockstep::checkpoint
