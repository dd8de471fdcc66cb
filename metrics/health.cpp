#include "metrics/health.h"

#include <fmt/format.h>

#include "base/log.h"

namespace lockstep::metrics {
namespace {

/// Level of a change to `state`. The other states have their own log lines: start, evaluation,
/// save, pause, end. A draining run may otherwise log nothing for a long time.
log::Level level_of(RunState state) {
  return state == RunState::kDraining ? log::Level::kInfo : log::Level::kDebug;
}

}  // namespace

void Health::note_state(RunState state) {
  // exchange(): a state that is set twice is logged once.
  const RunState before = state_.exchange(state, std::memory_order_relaxed);
  if (before == state || !tells_states_) return;
  const std::string line = fmt::format("{} (was {})", state_name(state), state_name(before));
  level_of(state) == log::Level::kInfo ? log::info("state", line) : log::debug("state", line);
}

}  // namespace lockstep::metrics
