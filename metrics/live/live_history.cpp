#include "metrics/live/live_history.h"

namespace lockstep::metrics {

void LiveHistory::add(const LivePoint& point) {
  const std::lock_guard lock(mutex_);
  newest_ = point;
  if (num_added_++ % stride_ != 0) return;
  kept_.push_back(point);
  if (kept_.size() <= max_points_) return;
  // Full: keep every second point, and from now on only every stride-th step.
  stride_ *= 2;
  for (size_t i = 0; 2 * i < kept_.size(); ++i) kept_[i] = kept_[2 * i];
  kept_.resize((kept_.size() + 1) / 2);
}

std::vector<LivePoint> LiveHistory::points() const {
  const std::lock_guard lock(mutex_);
  std::vector<LivePoint> all = kept_;
  // The newest step may be between two kept ones.
  if (!all.empty() && all.back().step != newest_.step) all.push_back(newest_);
  return all;
}

}  // namespace lockstep::metrics
