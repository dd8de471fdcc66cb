#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dist/communicator.h"

namespace lockstep::checkpoint {

/// The newest save of a folder, DIR/model.ckpt-10: the highest number under the prefix that the
/// state file names, or, where that is missing or names what is gone, the highest number of all.
/// Nothing if the folder holds none. Throws Error(kUsage) if a save is named instead of its folder.
std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir);

/// Collective: rank 0's answer on every rank, or its error.
std::optional<std::string> latest_checkpoint(const std::filesystem::path& dir,
                                             dist::Communicator& ranks);

}  // namespace lockstep::checkpoint
