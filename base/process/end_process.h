#pragma once

#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include "base/log.h"

namespace lockstep {

/// Ends the process with this exit code and all that was printed and logged, but without the
/// destructors of globals: LibTorch's take a quarter of the time that it needs to load. For the end
/// of main(), where no work is under way. Sanitizers report in those destructors, so that their
/// builds have them.
[[noreturn]] inline void end_process(int exit_code) {
  (void)log::flush(2.0);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::exit(exit_code);
#else
  (void)std::fflush(nullptr);
  ::_exit(exit_code);
#endif
}

}  // namespace lockstep
