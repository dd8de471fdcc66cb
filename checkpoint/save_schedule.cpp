// due_here() has no side effects, so every rank may ask at any time.
#include "checkpoint/save_schedule.h"

#include <chrono>
#include <utility>

namespace lockstep::checkpoint {

double SaveSchedule::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

SaveSchedule::SaveSchedule(const CheckpointOptions& options, dist::Communicator& control,
                           Clock clock_s)
    : enabled_(options.enabled),
      every_steps_(options.save_checkpoints_steps.value_or(0)),
      every_s_(static_cast<double>(
          options.save_checkpoints_secs.value_or(CheckpointOptions::kDefaultSecs))),
      control_(control),
      clock_s_(std::move(clock_s)),
      last_s_(clock_s_()) {}

bool SaveSchedule::due_here(int64_t step) const {
  if (!enabled_) return false;
  if (every_steps_ > 0) return step > 0 && step % every_steps_ == 0;
  return control_.rank() == 0 && clock_s_() - last_s_ >= every_s_;
}

}  // namespace lockstep::checkpoint
