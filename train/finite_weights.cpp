#include "train/finite_weights.h"

#include <algorithm>
#include <bit>

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include "base/error.h"
#include "dist/agree.h"

namespace lockstep::train {
namespace {

/// One pass without a temporary: what is not finite has an exponent of ones, and is the largest.
bool are_finite(const float* values, int64_t num_values) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < num_values; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffU);
  return largest < 0x7f800000U;
}

bool is_finite(const at::Tensor& weights) {
  if (weights.is_cpu() && weights.scalar_type() == at::kFloat && weights.is_contiguous())
    return are_finite(weights.const_data_ptr<float>(), weights.numel());
  return at::isfinite(weights).all().item<bool>();
}

/// The place of the first parameter that is not finite; behind the last one: all are.
int64_t first_not_finite(const ParamTable& params) {
  int64_t place = 0;
  for (const Param& param : params) {
    if (!is_finite(param.tensor.detach())) break;
    ++place;
  }
  return place;
}

}  // namespace

void require_finite_weights(const ParamTable& params, int64_t step, const std::string& last_commit,
                            dist::Communicator& control) {
  const int64_t place = dist::min_of(control, first_not_finite(params));
  if (place == static_cast<int64_t>(params.size())) return;
  throw Error(ExitCode::kNonFinite, "train",
              fmt::format("weights of {} are not finite after step {} (an update was too large) "
                          "and are not saved: the last commit stands ({}); lower the learning "
                          "rate, or clip gradients (optimizer.clip_norm)",
                          params[static_cast<size_t>(place)].name, step,
                          last_commit.empty() ? "there is none" : last_commit))
      .everywhere();
}

}  // namespace lockstep::train
