#pragma once

#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include "base/log.h"

namespace lockstep {

/// Ends the process with this exit code after flushing all output, but without the destructors of
/// globals. Those of LibTorch take a quarter of its loading time. For the end of main(), when no
/// work is in progress. Builds with sanitizers do run the destructors, because sanitizers report
/// there.
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
