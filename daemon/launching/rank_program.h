#pragma once

#include <string>

namespace lockstep::daemon {

/// Returns the command of each rank: `wanted`, or if that is empty, the lockstepd next to this
/// program. Throws Error(kUnavailable) if there is none.
std::string rank_program(const std::string& wanted);

/// Does the same for ranks that all run on this host. A path must lead to an executable file.
/// Throws Error(kInputMissing) too.
std::string rank_program_here(const std::string& wanted);

}  // namespace lockstep::daemon
