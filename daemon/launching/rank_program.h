#pragma once

#include <string>

namespace lockstep::daemon {

/// What each rank runs: `wanted`, or, where that is empty, the lockstepd beside this program.
/// Throws Error(kUnavailable) where there is none.
std::string rank_program(const std::string& wanted);

/// The same where all ranks run on this host: a path must be that of a file that can be started.
/// Throws Error(kInputMissing) too.
std::string rank_program_here(const std::string& wanted);

}  // namespace lockstep::daemon
