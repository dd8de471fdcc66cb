#include "optim/clip_gradients.h"

#include <cmath>

#include "base/error.h"

namespace lockstep::optim {
namespace {

at::Tensor gradients_of(const std::vector<FlatBuffer>& buffers, const ParamShard& region) {
  return buffers[region.buffer].grads_E.narrow(0, region.begin_E, region.num_elements());
}

/// Returns the norm before clipping.
double clip_by_norm(double limit, std::vector<FlatBuffer>& buffers,
                    const std::vector<ParamShard>& regions,
                    std::optional<double> squared_grad_norm) {
  check(squared_grad_norm.has_value(), "clipping by norm needs the sum of squares");
  const double norm = std::sqrt(*squared_grad_norm);
  // Every rank scales its own regions by the same factor, since the norm is equal on all ranks.
  if (norm > limit)
    for (const ParamShard& region : regions) gradients_of(buffers, region).mul_(limit / norm);
  return norm;
}

}  // namespace

std::optional<double> clip_gradients(const ClipOptions& options, std::vector<FlatBuffer>& buffers,
                                     const std::vector<ParamShard>& regions,
                                     std::optional<double> squared_grad_norm) {
  std::optional<double> norm;
  if (options.norm) norm = clip_by_norm(*options.norm, buffers, regions, squared_grad_norm);
  if (options.value)
    for (const ParamShard& region : regions)
      gradients_of(buffers, region).clamp_(-*options.value, *options.value);
  return norm;
}

}  // namespace lockstep::optim
