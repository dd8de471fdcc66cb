#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "metrics/samples.h"

namespace lockstep::metrics {

/// State from which the probes answer. The trainer writes, the server reads. Any thread, no lock.
/// Times are of the steady clock, so a jump of the wall clock causes no alarm.
class Health {
 public:
  using Clock = std::chrono::steady_clock;

  /// `tells_states`: log each change of state. Set it on one rank of a run.
  explicit Health(Clock::time_point start = Clock::now(), bool tells_states = false)
      : tells_states_(tells_states), last_turn_(ticks(start)), last_step_(ticks(start)) {}

  /// Records that all ranks have joined and their checks have passed.
  void note_world_formed() { world_formed_.store(true, std::memory_order_relaxed); }
  /// Records progress of the loop. Call it in every loop that can take long: training, validation
  /// batches, waiting for a save.
  void note_turn(Clock::time_point now = Clock::now()) {
    last_turn_.store(ticks(now), std::memory_order_relaxed);
  }
  /// Records the end of a training step; includes note_turn().
  void note_step(Clock::time_point now = Clock::now()) {
    num_steps_.fetch_add(1, std::memory_order_relaxed);
    last_step_.store(ticks(now), std::memory_order_relaxed);
    note_turn(now);
  }
  /// Sets the state. Only the trainer calls it. With tells_states it takes the log's lock.
  void note_state(RunState state);
  /// Records that a checkpoint was read. The time until the first step counts from here.
  void note_restored(Clock::time_point now = Clock::now()) {
    last_step_.store(ticks(now), std::memory_order_relaxed);
    note_turn(now);
    note_state(RunState::kInitializing);
  }

  bool world_formed() const { return world_formed_.load(std::memory_order_relaxed); }
  int64_t num_steps() const { return num_steps_.load(std::memory_order_relaxed); }
  RunState state() const { return state_.load(std::memory_order_relaxed); }
  Clock::time_point last_turn() const {
    return Clock::time_point(Clock::duration(last_turn_.load(std::memory_order_relaxed)));
  }
  /// Time since the last turn or step; since the start if there was none.
  double seconds_since_turn(Clock::time_point now) const {
    return seconds_between(last_turn_, now);
  }
  double seconds_since_step(Clock::time_point now) const {
    return seconds_between(last_step_, now);
  }

 private:
  using Ticks = Clock::rep;
  static Ticks ticks(Clock::time_point time) { return time.time_since_epoch().count(); }
  static double seconds_between(const std::atomic<Ticks>& from, Clock::time_point to) {
    const Clock::duration gap(ticks(to) - from.load(std::memory_order_relaxed));
    return std::chrono::duration<double>(gap).count();
  }

  const bool tells_states_;
  std::atomic<bool> world_formed_{false};
  std::atomic<int64_t> num_steps_{0};
  std::atomic<RunState> state_{RunState::kInitializing};
  std::atomic<Ticks> last_turn_, last_step_;
};

}  // namespace lockstep::metrics
