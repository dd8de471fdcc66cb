#pragma once

#include <cstdint>

namespace lockstep::checkpoint {

/// Copies like std::memcpy. Large copies use non-temporal stores, which do not read the target's
/// memory first. That saves a third of the memory traffic.
void copy_past_cache(char* to, const char* from, int64_t num_bytes);

}  // namespace lockstep::checkpoint
