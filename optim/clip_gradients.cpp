#include "optim/clip_gradients.h"

#include <cmath>

#include "base/error.h"

namespace lockstep::optim {
namespace {

void multiply(std::vector<FlatBuffer>& buffers, double factor) {
  for (FlatBuffer& buffer : buffers)
    if (!buffer.frozen) buffer.grads_E.mul_(factor);
}

/// The norm before.
double clip_by_norm(double limit, std::vector<FlatBuffer>& buffers,
                    std::optional<double> squared_grad_norm) {
  check(squared_grad_norm.has_value(), "clipping by norm needs the sum of squares");
  const double norm = std::sqrt(*squared_grad_norm);
  if (norm > limit) multiply(buffers, limit / norm);
  return norm;
}

}  // namespace

std::optional<double> clip_gradients(const ClipOptions& options, std::vector<FlatBuffer>& buffers,
                                     std::optional<double> squared_grad_norm) {
  std::optional<double> norm;
  if (options.norm) norm = clip_by_norm(*options.norm, buffers, squared_grad_norm);
  if (options.value)
    for (FlatBuffer& buffer : buffers)
      if (!buffer.frozen) buffer.grads_E.clamp_(-*options.value, *options.value);
  return norm;
}

}  // namespace lockstep::optim
