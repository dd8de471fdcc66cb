#include "dist/bucket/bucket_plan.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace lockstep::dist {
namespace {

/// Bucket of one group that still takes parameters.
struct OpenBucket {
  std::vector<int64_t> params;
  int64_t num_bytes = 0;
};

}  // namespace

std::vector<std::vector<int64_t>> plan_buckets(
    const std::vector<PlannedParam>& params_in_model_order, int64_t bucket_bytes) {
  check(bucket_bytes > 0, "bucket_bytes must be positive");
  std::vector<std::vector<int64_t>> buckets;
  // From the last parameter to the first: the order in which backward produces gradients.
  std::map<int64_t, OpenBucket> open_by_group;
  for (auto i = static_cast<int64_t>(params_in_model_order.size()) - 1; i >= 0; --i) {
    const PlannedParam& param = params_in_model_order[i];
    OpenBucket& open = open_by_group[param.group];
    if (!open.params.empty() && open.num_bytes + param.num_bytes > bucket_bytes) {
      buckets.push_back(std::move(open.params));
      open = {};
    }
    open.params.push_back(i);
    open.num_bytes += param.num_bytes;
  }
  for (auto& [group, open] : open_by_group) buckets.push_back(std::move(open.params));
  std::sort(buckets.begin(),
            buckets.end(),  // a bucket is complete with its last parameter, which only it holds
            [](const auto& a, const auto& b) { return a.back() > b.back(); });
  return buckets;
}

}  // namespace lockstep::dist
