// Counts the missing gradients of each bucket with atomics, since several autograd threads may mark
// at once. The mutex guards only the number of leading complete buckets.
#include "dist/reducer/ready_tracker.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace lockstep::dist {
namespace {

/// Returns the number of leading elements of the parameter that complete a bucket. If other
/// parameters share the bucket: only mark_ready() completes it.
int64_t end_of_part(const Bucket& bucket, int64_t begin_E) {
  return bucket.params.size() > 1 ? std::numeric_limits<int64_t>::max()
                                  : begin_E + bucket.num_elements();
}

/// A user's network can cause this, so it is not kBug.
void require_first(bool is_first) {
  if (is_first) return;
  throw Error(ExitCode::kConfig, "dist",
              "a parameter got a second gradient in one step: part of the network runs a backward "
              "pass of its own, as torch.utils.checkpoint does with use_reentrant=True: use "
              "use_reentrant=False. In a loop of your own, prepare_for_backward() comes before the "
              "last backward pass");
}

}  // namespace

void ReadyTracker::rebuild(const std::vector<Bucket>& buckets) {
  int64_t last_param = -1;
  for (const Bucket& bucket : buckets)
    for (const int64_t param : bucket.params) last_param = std::max(last_param, param);
  num_params_ = static_cast<size_t>(last_param + 1);
  params_ = std::make_unique<Param[]>(num_params_);
  num_awaited_.clear();
  for (size_t b = 0; b < buckets.size(); ++b) {
    num_awaited_.push_back(static_cast<int32_t>(buckets[b].params.size()));
    for (const int64_t param : buckets[b].params) {
      std::vector<Part>& parts = params_[static_cast<size_t>(param)].parts;
      // mark_parts() stops at the first missing part, so parts must ascend in memory.
      check(parts.empty() || buckets[parts.back().bucket].end_E == buckets[b].begin_E,
            "the pieces of a parameter stand in memory order");
      parts.push_back({b, end_of_part(buckets[b], parts.empty() ? 0 : parts.back().end_E)});
    }
  }
  num_missing_ = std::make_unique<std::atomic<int32_t>[]>(buckets.size());
  begin();
}

void ReadyTracker::begin() {
  for (size_t i = 0; i < num_params_; ++i) {
    params_[i].num_there = 0;
    params_[i].is_there = false;
  }
  for (size_t b = 0; b < num_awaited_.size(); ++b)
    num_missing_[b] = std::max(num_awaited_[b], 1);  // without parameters: never complete
  const std::lock_guard lock(mutex_);
  num_complete_ = 0;
}

bool ReadyTracker::mark_ready(int64_t param) {
  Param* const arrived = find(param);
  if (arrived == nullptr) return false;
  require_first(!arrived->is_there.exchange(true));
  return mark_parts(*arrived, std::numeric_limits<int64_t>::max());
}

bool ReadyTracker::mark_written(int64_t param, int64_t num_elements) {
  Param* const arriving = find(param);
  if (arriving == nullptr) return false;
  require_first(!arriving->is_there);
  return mark_parts(*arriving, num_elements);
}

ReadyTracker::Param* ReadyTracker::find(int64_t param) {
  if (param < 0 || static_cast<size_t>(param) >= num_params_) return nullptr;
  Param& found = params_[static_cast<size_t>(param)];
  return found.parts.empty() ? nullptr : &found;
}

bool ReadyTracker::mark_parts(Param& param, int64_t num_elements) {
  bool completed = false;
  for (; param.num_there < param.parts.size(); ++param.num_there) {
    const Part& part = param.parts[param.num_there];
    if (part.end_E > num_elements) break;
    // acq_rel: the thread that completes a bucket sees the gradients that other threads wrote.
    completed = num_missing_[part.bucket].fetch_sub(1, std::memory_order_acq_rel) == 1 || completed;
  }
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
    if (!params_[i].parts.empty() && !params_[i].is_there)
      params.push_back(static_cast<int64_t>(i));
  return params;
}

bool ReadyTracker::any() const {
  return std::any_of(params_.get(), params_.get() + num_params_,
                     [](const Param& param) { return param.is_there.load(); });
}

}  // namespace lockstep::dist
