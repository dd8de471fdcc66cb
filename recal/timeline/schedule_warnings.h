#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recal/timeline/timeline.h"

/// What a user should know of a timeline as a whole.
namespace lockstep::recal {

/// Whether a run of `last_step` updates comes to the action: what works on masks and values is
/// still done once the last update is made, in finalize.
bool is_reached(const Action& action, int64_t last_step);

/// Which modifiers make the run longer than its EpochRangeModifier says.
std::vector<std::string> widening_notes(const Timeline& timeline);

/// Modifiers that never fire or never reach their end, as the run is too short or their window is.
/// `max_steps`: a cap of the run.
std::vector<std::string> idle_warnings(const Timeline& timeline, std::optional<int64_t> max_steps);

}  // namespace lockstep::recal
