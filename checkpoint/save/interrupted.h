#pragma once

#include <cstdint>
#include <string>

namespace lockstep::checkpoint {

/// Ends what a killed save had still to do behind its commit, for a run that goes on from that save
/// and may write no other: removes left-over temporary files and shards without an index, and names
/// the save `restored` in the state file. Does nothing where no journal
/// (checkpoint/files/save_lock.h) tells of a killed save, where another program saves, or where
/// there are no locks. Saves that the killed one was about to remove stay in the journal: the next
/// save removes them.
///
/// `prefix` is DIR/model.ckpt. Called by rank 0 alone, before its first save. A fault of the disk
/// is a warning: the next save does the same.
void tidy_interrupted(const std::string& prefix, int64_t restored);

}  // namespace lockstep::checkpoint
