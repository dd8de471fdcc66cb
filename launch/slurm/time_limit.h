#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::launch {

/// Seconds of a time as sbatch's --time takes it: minutes, minutes:seconds, hours:minutes:seconds,
/// days-hours, days-hours:minutes, days-hours:minutes:seconds. 0: no limit (0, UNLIMITED,
/// INFINITE). Nothing for any other text.
std::optional<int64_t> slurm_time_s(std::string_view text);

}  // namespace lockstep::launch
