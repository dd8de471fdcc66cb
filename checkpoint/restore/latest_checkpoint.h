#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dist/communicator.h"

namespace lockstep::checkpoint {

/// Returns the newest checkpoint of a folder, DIR/model.ckpt-10; nullopt if there is none.
///
/// It is the one that the state file names, if that is complete (index and shards exist with their
/// sizes). So editing that file goes back to an older checkpoint, as in TensorFlow. One case has
/// priority: the same prefix, a higher number, and an index newer than the state file. Its program
/// was killed before it wrote the state file. If the state file is missing, or names an incomplete
/// checkpoint, the highest number counts.
///
/// Throws Error(kUsage) if `dir` names a checkpoint instead of its folder. Throws kIo if a
/// checkpoint cannot be read for a reason outside of it.
std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir);

/// Returns rank 0's answer on every rank, or throws its error. Collective.
std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir,
                                             dist::Communicator& ranks);

}  // namespace lockstep::checkpoint
