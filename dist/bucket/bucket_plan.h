#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::dist {

/// Properties of one parameter that the plan needs.
struct PlannedParam {
  int64_t num_bytes = 0;
  int64_t group =
      0;  ///< parameters of different groups never share a bucket (dtype, decay, learning rate)
};

/// Assigns parameters to buckets: returns a list of buckets, each a list of indices into
/// `params_in_model_order`.
///
/// Backward produces gradients from the last parameter to the first. So buckets are filled in that
/// order (their indices descend), and are sorted by the order in which they become complete. A
/// bucket takes parameters of its group until the next one would exceed bucket_bytes. A larger
/// parameter has a bucket to itself. Every parameter is in one bucket.
///
/// A pure function of values that are equal on all ranks, so the plan is equal too. bucket_bytes >
/// 0.
std::vector<std::vector<int64_t>> plan_buckets(
    const std::vector<PlannedParam>& params_in_model_order, int64_t bucket_bytes);

}  // namespace lockstep::dist
