#pragma once

#include <cstdint>

namespace lockstep::checkpoint {

/// As std::memcpy. Large copies are written with non-temporal stores, which do not read the
/// target's memory first: two thirds of the traffic, where memory is the limit.
void copy_past_cache(char* to, const char* from, int64_t num_bytes);

}  // namespace lockstep::checkpoint
