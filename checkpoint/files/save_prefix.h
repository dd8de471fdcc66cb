#pragma once

#include <string>

/// What people mistake for the name of a save, and what it should have been.
namespace lockstep::checkpoint {

/// The save's name, DIR/NAME-NUMBER, unchanged. Throws Error(kUsage) with a hint if it names a file
/// of a save (.index, .data-00000-of-00001, .tmp), a folder, or nothing; Error(kInputMissing) that
/// names the saves beside it if there is no such save: without its number, of another number, in an
/// empty folder, in none. Looks at names only; foreign saves need no number.
std::string require_save(const std::string& prefix);

/// The prefix of saves to come, DIR/NAME, unchanged. Throws Error(kUsage) if it names no file, ends
/// as files of a save do, or holds letters that TensorFlow takes for a pattern.
std::string require_new_prefix(const std::string& prefix);

}  // namespace lockstep::checkpoint
