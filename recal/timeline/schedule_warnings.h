#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recal/timeline/timeline.h"

/// Warnings and notes about a timeline as a whole.
namespace lockstep::recal {

/// True if a run of `last_step` updates executes the action. Actions on masks and values at
/// last_step are executed after the last update, in finalize.
bool is_reached(const Action& action, int64_t last_step);

/// Notes about modifiers that make the run longer than its EpochRangeModifier says.
std::vector<std::string> widening_notes(const Timeline& timeline);

/// Warnings about modifiers without effect, or that never reach their end, because the run or their
/// window is too short. max_steps: limit of the run.
std::vector<std::string> idle_warnings(const Timeline& timeline, std::optional<int64_t> max_steps);

}  // namespace lockstep::recal
