#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recal/timeline.h"

/// What a user should know of a timeline as a whole.
namespace lockstep::recal {

/// Which modifiers make the run longer than its EpochRangeModifier says.
std::vector<std::string> widening_notes(const Timeline& timeline);

/// Modifiers that never fire or never reach their end, as the run is too short or their window is.
/// `max_steps`: a cap of the run.
std::vector<std::string> idle_warnings(const Timeline& timeline, std::optional<int64_t> max_steps);

}  // namespace lockstep::recal
