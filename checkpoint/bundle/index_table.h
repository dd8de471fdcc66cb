#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

/// Sorted table of an index file: LevelDB's format, uncompressed (docs/checkpoint_format.md,
/// Index). The meaning of keys and values is defined elsewhere.
namespace lockstep::checkpoint {

/// Rows in the table's order, which is by bytes.
using TableRows = std::map<std::string, std::string>;

/// Builds the table's bytes row by row, in ascending order of keys. Equal rows give equal bytes.
class TableEncoder {
 public:
  TableEncoder();
  ~TableEncoder();
  TableEncoder(const TableEncoder&) = delete;
  TableEncoder& operator=(const TableEncoder&) = delete;

  void add(std::string_view key, std::string_view value);
  /// Returns the table's bytes. Call it once, after the last row.
  std::string finish();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Returns the file's bytes. Equal rows give equal bytes.
std::string encode_table(const TableRows& rows);

/// True if encode_table() gives exactly these bytes for the rows that they contain. This check also
/// covers the footer and the places of blocks, which the block checksums do not. Throws as
/// for_each_row().
bool is_as_encoded(std::string_view bytes);

/// Calls use(key, value) for each row, in order. Throws std::runtime_error with reason and offset
/// for an invalid table. Refuses tables whose rows unfold to more than 32 MiB plus 16 times the
/// table's size.
///
/// LevelDB's own reader is not used for two reasons. It allocates memory for a block before it
/// knows that the file contains it. Its checksums do not cover the footer and the empty metaindex
/// block.
using UseRow = std::function<void(const std::string& key, std::string_view value)>;
void for_each_row(std::string_view bytes, const UseRow& use);

/// Returns all rows at once. For tests only: it takes a multiple of the table's bytes.
TableRows decode_table(std::string_view bytes);

}  // namespace lockstep::checkpoint
