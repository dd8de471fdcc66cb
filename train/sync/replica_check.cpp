#include "train/sync/replica_check.h"

#include <chrono>

#include <fmt/format.h>

#include "dist/replica/state_check.h"

namespace lockstep::train {

void ReplicaCheck::require(std::string_view when) {
  const auto begin = std::chrono::steady_clock::now();
  dist::require_equal_state(control_, fmt::format("the state {}", when), state_());
  ++num_checks_;
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace lockstep::train
