#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

/// Everything that is wrong with one save (`prefix` with its number), a sentence each; empty:
/// sound. Reads every byte of every file. Throws only for read faults of the machine (kIo) and a
/// prefix that ends in .index (kUsage).
std::vector<std::string> verify(const std::string& prefix);

/// The cheap look before a restore: the index is sound and each shard is there with the size that
/// it gives. Nothing if so. Throws for read faults of the machine (kIo).
std::optional<std::string> quick_check(const std::string& prefix);

}  // namespace lockstep::checkpoint
