#include "metrics/health.h"

#include <fmt/format.h>

#include "base/log.h"

namespace lockstep::metrics {
namespace {

/// The others have a line of their own, that of the start, the evaluation, the save, the pause, the
/// end. A run that drains may take long before it says anything.
log::Level level_of(RunState state) {
  return state == RunState::kDraining ? log::Level::kInfo : log::Level::kDebug;
}

}  // namespace

void Health::note_state(RunState state) {
  const RunState before = state_.exchange(state, std::memory_order_relaxed);
  if (before == state || !tells_states_) return;
  const std::string line = fmt::format("{} (was {})", state_name(state), state_name(before));
  level_of(state) == log::Level::kInfo ? log::info("state", line) : log::debug("state", line);
}

}  // namespace lockstep::metrics
