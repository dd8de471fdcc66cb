#pragma once

#include <string>

/// Checks of names that users give for checkpoints, with hints for common mistakes.
namespace lockstep::checkpoint {

/// Returns the checkpoint's name, DIR/NAME-NUMBER, unchanged. Only names are examined. Names of
/// foreign checkpoints need no number.
///
/// Throws Error(kUsage) with a hint for a file of a checkpoint (.index, .data-00000-of-00001,
/// .tmp), a folder, or an empty name. Throws Error(kInputMissing) if the checkpoint does not exist,
/// with the names of those that do. Reasons are a missing number, another number, an empty folder,
/// or a missing folder.
std::string require_save(const std::string& prefix);

/// Returns the prefix for new checkpoints, DIR/NAME, unchanged. Throws Error(kUsage) if it has no
/// file name or ends as a checkpoint's files do. Throws it too for characters that TensorFlow
/// treats as a pattern.
std::string require_new_prefix(const std::string& prefix);

}  // namespace lockstep::checkpoint
