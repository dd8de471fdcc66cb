#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/save_files.h"

/// Which saves go, and how. Called by rank 0 alone.
namespace lockstep::checkpoint {

/// The saves to remove so that `keep_max` remain (-1: none), lowest numbers first, never the one
/// just written. `saves` in numeric order, of one prefix.
std::vector<SaveName> surplus_saves(const std::vector<SaveName>& saves, int64_t keep_max,
                                    int64_t just_written);

/// Removes the files of one save, the index first and durably: from then on no reader trusts the
/// shards. Temporary files stay: they may belong to the next save of this number.
void remove_save(const std::string& prefix);

/// Removes what interrupted saves left: temporary files and shards without an index. Only while no
/// save is under way.
void remove_debris(const std::filesystem::path& dir, const std::string& prefix_name);

}  // namespace lockstep::checkpoint
