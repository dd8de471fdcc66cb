#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

/// Returns all defects of one checkpoint (`prefix` with its number), one sentence each; empty if it
/// is valid. Reads every byte of every file. Throws only for read faults of the machine (kIo) and
/// for a prefix that ends in .index (kUsage).
std::vector<std::string> verify(const std::string& prefix);

/// Quick check before a restore: the index is valid, and each shard has the size that the index
/// implies. Returns the defect, or nullopt. Throws for read faults of the machine (kIo).
std::optional<std::string> quick_check(const std::string& prefix);

}  // namespace lockstep::checkpoint
