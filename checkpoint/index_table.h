#pragma once

#include <map>
#include <string>
#include <string_view>

/// The sorted table of an index file: LevelDB's format, uncompressed (docs/checkpoint_format.md,
/// Index). Knows nothing of what keys and values mean.
namespace lockstep::checkpoint {

/// Ordered by bytes, as the table is.
using TableRows = std::map<std::string, std::string>;

/// The file's bytes, equal for equal rows.
std::string encode_table(const TableRows& rows);

/// Throws std::runtime_error with the reason and the offset. Takes at most 32 MiB more than the
/// input for keys and values.
///
/// Not LevelDB's own reader: that one takes memory for a block before it knows that the file holds
/// it, and its checksums leave the footer and the empty metaindex block uncovered.
TableRows decode_table(std::string_view bytes);

}  // namespace lockstep::checkpoint
