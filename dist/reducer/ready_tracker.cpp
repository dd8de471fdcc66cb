#include "dist/reducer/ready_tracker.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::dist {

void ReadyTracker::rebuild(const std::vector<Bucket>& buckets) {
  int64_t last_param = -1;
  for (const Bucket& bucket : buckets)
    for (const int64_t param : bucket.params) last_param = std::max(last_param, param);
  num_params_ = static_cast<size_t>(last_param + 1);
  params_ = std::make_unique<Param[]>(num_params_);
  num_awaited_.clear();
  for (size_t b = 0; b < buckets.size(); ++b) {
    num_awaited_.push_back(static_cast<int32_t>(buckets[b].params.size()));
    for (const int64_t param : buckets[b].params)
      params_[static_cast<size_t>(param)].buckets.push_back(b);
  }
  num_missing_ = std::make_unique<std::atomic<int32_t>[]>(buckets.size());
  begin();
}

void ReadyTracker::begin() {
  for (size_t i = 0; i < num_params_; ++i) params_[i].is_there = false;
  for (size_t b = 0; b < num_awaited_.size(); ++b)
    num_missing_[b] = std::max(num_awaited_[b], 1);  // without parameters: never complete
  const std::lock_guard lock(mutex_);
  num_complete_ = 0;
}

bool ReadyTracker::mark_ready(int64_t param) {
  if (param < 0 || static_cast<size_t>(param) >= num_params_) return false;
  Param& arrived = params_[static_cast<size_t>(param)];
  if (arrived.buckets.empty()) return false;
  check(
      !arrived.is_there.exchange(true),
      "a second gradient of one parameter in a step: prepare_for_backward() comes before the last "
      "backward pass");
  bool completed = false;
  for (const size_t b : arrived.buckets)
    completed = num_missing_[b].fetch_sub(1, std::memory_order_acq_rel) == 1 || completed;
  if (!completed) return false;

  const std::lock_guard lock(mutex_);
  const size_t before = num_complete_;
  while (num_complete_ < num_awaited_.size() &&
         num_missing_[num_complete_].load(std::memory_order_acquire) == 0)
    ++num_complete_;
  return num_complete_ > before;
}

size_t ReadyTracker::num_complete() const {
  const std::lock_guard lock(mutex_);
  return num_complete_;
}

std::vector<int64_t> ReadyTracker::missing() const {
  std::vector<int64_t> params;
  for (size_t i = 0; i < num_params_; ++i)
    if (!params_[i].buckets.empty() && !params_[i].is_there)
      params.push_back(static_cast<int64_t>(i));
  return params;
}

bool ReadyTracker::any() const {
  return std::any_of(params_.get(), params_.get() + num_params_,
                     [](const Param& param) { return param.is_there.load(); });
}

}  // namespace lockstep::dist
