#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"

namespace lockstep::data {

/// Ends with exit code 65 because of a file's content. `what` states the fault and what would be
/// right.
[[noreturn]] inline void refuse_file(const std::filesystem::path& path, const std::string& what) {
  throw Error(ExitCode::kBadData, "data", path.string() + ": " + what);
}

}  // namespace lockstep::data
