#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/files/save_files.h"

/// Which saves go, and how. Called by rank 0 alone.
namespace lockstep::checkpoint {

struct KeepRules {
  int64_t keep_max = 5;    ///< the newest so many stay; -1: all
  int64_t keep_every = 0;  ///< saves whose number is a multiple stay too, and do not count; 0: none
  std::optional<int64_t> best;  ///< stays too, and does not count
};

/// The saves to remove by the rules, lowest numbers first, never the one just written. Those with a
/// higher number, which a restore passed over, are left to the user and do not count. `saves` in
/// numeric order, of one prefix.
std::vector<SaveName> surplus_saves(const std::vector<SaveName>& saves, const KeepRules& rules,
                                    int64_t just_written);

/// Removes the files of one save, the index first and durably: from then on no reader trusts the
/// shards. Temporary files stay: they may belong to the next save of this number.
void remove_save(const std::string& prefix);

/// Removes what interrupted saves of these numbers left: temporary files, and shards without an
/// index. `numbers` is a journal of one's own (checkpoint/files/save_lock.h): files of other
/// numbers may be anybody's. `prefix` is DIR/model.ckpt; only while no save under it is under way.
void remove_left_over(const std::string& prefix, const std::set<int64_t>& numbers);

}  // namespace lockstep::checkpoint
