#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dist/communicator.h"

namespace lockstep::checkpoint {

/// The newest save of a folder, DIR/model.ckpt-10: the one that the state file names, if it is
/// complete (index and shards are there with their sizes), so that editing that file goes back to
/// an older save, as with TensorFlow. A save of the same prefix with a higher number counts instead
/// if its index is newer than the state file: a program was killed before it came to name it. Where
/// the state file is missing, or names what is not complete, the highest number of all counts.
/// Nothing if the folder holds none. Throws Error(kUsage) if a save is named instead of its folder,
/// kIo if a save cannot be read for a reason that is none of its own.
std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir);

/// Collective: rank 0's answer on every rank, or its error.
std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir,
                                             dist::Communicator& ranks);

}  // namespace lockstep::checkpoint
