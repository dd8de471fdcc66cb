#include "train/weight_checks.h"

#include <chrono>
#include <cmath>

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <fmt/format.h>

#include "base/error.h"
#include "dist/replica_check.h"
#include "dist/tensor_math.h"

namespace lockstep::train {

void ReplicaCheck::require(std::string_view when) {
  const auto begin = std::chrono::steady_clock::now();
  dist::require_equal_state(control_, fmt::format("the state {}", when), state_());
  ++num_checks_;
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

namespace {

bool is_finite(const at::Tensor& weights) {
  // In one pass, without a temporary.
  if (weights.is_cpu() && weights.scalar_type() == at::kFloat && weights.is_contiguous())
    return std::isfinite(dist::largest_magnitude(weights));
  return at::isfinite(weights).all().item<bool>();
}

bool holds_nan(const at::Tensor& values) {
  const bool may_hold = values.is_floating_point() || values.is_complex();
  return may_hold && at::isnan(values).any().item<bool>();
}

/// Returns the index of the first non-finite parameter, else of the first buffer with NaN (counted
/// after the parameters). The total number if all are good.
int64_t first_fault(const ParamTable& params, const std::vector<model::Buffer>& buffers) {
  int64_t place = 0;
  for (const Param& param : params) {
    if (!is_finite(param.tensor.detach())) return place;
    ++place;
  }
  for (const model::Buffer& buffer : buffers) {
    if (holds_nan(buffer.tensor.detach())) return place;
    ++place;
  }
  return place;
}

std::string what_is_wrong(const ParamTable& params, const std::vector<model::Buffer>& buffers,
                          size_t place) {
  if (place < params.size()) return fmt::format("weights of {} are not finite", params[place].name);
  return fmt::format("buffer {} of the network contains NaN", buffers[place - params.size()].name);
}

}  // namespace

void require_finite_weights(const model::Model& model, int64_t step, const std::string& last_commit,
                            dist::Communicator& control) {
  const ParamTable& params = model.params();
  const std::vector<model::Buffer>& buffers = model.buffers();
  // The lowest fault of any rank: all ranks throw the same message.
  const int64_t place = dist::min_of(control, first_fault(params, buffers));
  if (place == static_cast<int64_t>(params.size() + buffers.size())) return;
  throw Error(ExitCode::kNonFinite, "train",
              fmt::format("{} after step {} (an update was too large) and the state is not saved: "
                          "the last checkpoint is kept ({}); lower the learning rate, or clip "
                          "gradients (optimizer.clip_norm)",
                          what_is_wrong(params, buffers, static_cast<size_t>(place)), step,
                          last_commit.empty() ? "there is none" : last_commit))
      .everywhere();
}

}  // namespace lockstep::train
