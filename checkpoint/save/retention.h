#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/files/save_files.h"

/// Selection and removal of surplus checkpoints. Called by rank 0 alone.
namespace lockstep::checkpoint {

struct KeepRules {
  int64_t keep_max = 5;         ///< newest checkpoints to keep; -1: all
  int64_t keep_every = 0;       ///< multiples of this number stay too and do not count; 0: none
  std::optional<int64_t> best;  ///< stays too and does not count
};

/// Returns the checkpoints to remove, lowest numbers first, never the one just written. Those with
/// a higher number, which a restore skipped, are left to the user and do not count. `saves` must be
/// in numeric order and of one prefix.
std::vector<SaveName> surplus_saves(const std::vector<SaveName>& saves, const KeepRules& rules,
                                    int64_t just_written);

/// Removes the files of one checkpoint. The index goes first and durably, so that from then on no
/// reader trusts the shards. Temporary files stay, because they may belong to the next save of this
/// number.
void remove_save(const std::string& prefix);

/// Removes the remains of interrupted saves of these numbers: temporary files, and shards without
/// an index. `numbers` must come from this program's own journal (checkpoint/files/save_lock.h),
/// since files of other numbers may be anybody's. `prefix` is DIR/model.ckpt. No save under the
/// prefix may be in progress.
void remove_left_over(const std::string& prefix, const std::set<int64_t>& numbers);

}  // namespace lockstep::checkpoint
