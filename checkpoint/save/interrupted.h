#pragma once

#include <cstdint>
#include <string>

namespace lockstep::checkpoint {

/// Finishes the work that a killed save left after its commit. A run calls it that resumes from
/// that checkpoint and may write no other. It removes left-over temporary files and shards without
/// an index, and names the checkpoint `restored` in the state file.
///
/// Does nothing if no journal (checkpoint/files/save_lock.h) names a killed save. Does nothing
/// either if another program is saving, or the file system has no locks. Checkpoints that the
/// killed save was about to remove stay in the journal, and the next save removes them.
///
/// `prefix` is DIR/model.ckpt. Called by rank 0 alone, before its first save. A fault of the disk
/// is only logged as a warning: the next save does the same work.
void tidy_interrupted(const std::string& prefix, int64_t restored);

}  // namespace lockstep::checkpoint
