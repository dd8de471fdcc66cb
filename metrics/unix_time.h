#pragma once

#include <chrono>

namespace lockstep::metrics {

/// Returns the seconds since 1970, for *_timestamp_seconds and events.
inline double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace lockstep::metrics
