#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::dist {

/// What the plan must know of one parameter.
struct PlannedParam {
  int64_t num_bytes = 0;
  int64_t group =
      0;  ///< parameters of different groups never share a bucket (dtype, decay, learning rate)
};

/// Which parameters' gradients travel together: a list of buckets, each a list of indices into
/// `params_in_model_order`.
///
/// Backward makes gradients from the last parameter to the first, so buckets are filled in that
/// order (their indices descend), and stand in the order in which they become complete. A bucket
/// takes parameters of its group until the next one would lift it over bucket_bytes; a larger
/// parameter has a bucket to itself. Every parameter is in one bucket.
///
/// Pure arithmetic on values that are equal on all ranks, so the plan is too. bucket_bytes > 0.
std::vector<std::vector<int64_t>> plan_buckets(
    const std::vector<PlannedParam>& params_in_model_order, int64_t bucket_bytes);

}  // namespace lockstep::dist
