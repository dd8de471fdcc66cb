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
                    std::optional<double> square_sum) {
  check(square_sum.has_value(), "clipping by norm needs the sum of squares");
  const double norm = std::sqrt(*square_sum);
  if (norm > limit) multiply(buffers, limit / norm);
  return norm;
}

}  // namespace

std::optional<double> clip_gradients(const ClipOptions& options, std::vector<FlatBuffer>& buffers,
                                     std::optional<double> square_sum) {
  std::optional<double> norm;
  if (options.norm) norm = clip_by_norm(*options.norm, buffers, square_sum);
  if (options.value)
    for (FlatBuffer& buffer : buffers)
      if (!buffer.frozen) buffer.grads_E.clamp_(-*options.value, *options.value);
  return norm;
}

}  // namespace lockstep::optim
