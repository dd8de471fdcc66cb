#include "base/process_state.h"

namespace lockstep {
namespace {

/// Head of the list of states. Only objects at namespace scope set it, before main().
const ProcessState*& newest() {
  static const ProcessState* one = nullptr;
  return one;
}

}  // namespace

ProcessState::ProcessState(const char* name, Reset reset) noexcept
    : name_(name), reset_(reset), next_(newest()) {
  newest() = this;
}

void ProcessState::begin_job() {
  for (const ProcessState* one = newest(); one != nullptr; one = one->next_) one->reset_();
}

}  // namespace lockstep
