#include "train/step/replica_check.h"

#include <fmt/format.h>

#include "dist/replica/state_check.h"
#include "train/step/stopwatch.h"

namespace lockstep::train {

void ReplicaCheck::require(std::string_view when) {
  Stopwatch watch;
  dist::require_equal_state(control_, fmt::format("the state {}", when), state_());
  ++num_checks_;
  seconds_ += watch.lap();
}

}  // namespace lockstep::train
