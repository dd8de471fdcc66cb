// Argument checks that all backends share. They run before any message is sent.
#include "dist/backend_parts.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::dist {
namespace {

bool is_supported(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
    case at::kLong:
    case at::kByte:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check_values(const at::Tensor& values, at::Device device) {
  check(values.defined() && values.is_contiguous(), "a collective needs a contiguous tensor");
  check(values.device() == device,
        fmt::format("a collective of {} got a tensor on {}", device.str(), values.device().str()));
  check(is_supported(values.scalar_type()),
        fmt::format("no collective for dtype {}", c10::toString(values.scalar_type())));
}

void check_pieces(const at::Tensor& values_K, const at::Tensor& values_NK, int world_size,
                  at::Device device) {
  check_values(values_K, device);
  check_values(values_NK, device);
  check(values_K.scalar_type() == values_NK.scalar_type(), "pieces and whole differ in dtype");
  check(values_NK.numel() == values_K.numel() * world_size,
        fmt::format("{} items are not {} pieces of {}", values_NK.numel(), world_size,
                    values_K.numel()));
}

}  // namespace lockstep::dist
