#include "train/step/skipped_updates.h"

#include <chrono>

#include <fmt/format.h>

namespace lockstep::train {
namespace {

constexpr double kTellEvery_s = 60;

double steady_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

SkippedUpdates::SkippedUpdates(std::function<double()> clock_s)
    : clock_s_(clock_s ? std::move(clock_s) : steady_s) {}

std::optional<std::string> SkippedUpdates::add(int64_t step, const std::string& why) {
  ++num_skipped_;
  const double now_s = clock_s_();
  // Counted but not logged; the next message contains the number.
  if (told_at_s_ && now_s - *told_at_s_ < kTellEvery_s) return std::nullopt;
  told_at_s_ = now_s;
  return fmt::format("step {}: the update was skipped, because {}; skipped so far: {}", step, why,
                     num_skipped_);
}

}  // namespace lockstep::train
