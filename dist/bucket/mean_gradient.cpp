// Loops over gradient elements. They have no branches, so that compilers vectorise them.
#include "dist/bucket/mean_gradient.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "base/error.h"

namespace lockstep::dist {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// True if all items, computed as A, are finite. Reads only.
template <typename T, typename A>
bool all_finite(const T* values, int64_t num_items) {
  int32_t num_bad = 0;
  for (int64_t i = 0; i < num_items; ++i) {
    const A wide = static_cast<A>(values[i]);
    num_bad |= static_cast<int32_t>(!(wide - wide == A{0}));
  }
  return num_bad == 0;
}

/// Divides items of type T, computed as A, and checks the means. `x - x` is 0 for a finite x and
/// NaN otherwise. Unlike a branch, this vectorises.
template <typename T, typename A>
bool divide(void* sums_E, int64_t num_items, int64_t num_samples) {
  T* values = static_cast<T*>(sums_E);
  if (num_samples == 1) return all_finite<T, A>(values, num_items);
  const A divisor = static_cast<A>(num_samples);
  int32_t num_bad = 0;
  for (int64_t i = 0; i < num_items; ++i) {
    const T mean = static_cast<T>(static_cast<A>(values[i]) / divisor);
    const A wide = static_cast<A>(mean);
    values[i] = mean;
    num_bad |= static_cast<int32_t>(!(wide - wide == A{0}));
  }
  return num_bad == 0;
}

/// Returns a type in which items of any type are finite if they are in their own.
at::ScalarType wide_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

bool divide_and_check(void* sums_E, int64_t num_items, at::ScalarType dtype, int64_t num_samples) {
  check(num_samples > 0, "a mean over no samples");
  switch (dtype) {
    case at::kFloat:
      return divide<float, float>(sums_E, num_items, num_samples);
    case at::kDouble:
      return divide<double, double>(sums_E, num_items, num_samples);
    case at::kBFloat16:
      return divide<c10::BFloat16, float>(sums_E, num_items, num_samples);
    case at::kHalf:
      return divide<c10::Half, float>(sums_E, num_items, num_samples);
    default:
      check(false, "gradients are floats");
      return false;
  }
}

bool divide_and_check(const at::Tensor& sums_E, int64_t num_samples) {
  check(num_samples > 0, "a mean over no samples");
  check(sums_E.is_contiguous(), "a flat gradient buffer is contiguous");
  if (!sums_E.is_cpu()) {
    if (num_samples != 1) sums_E.div_(static_cast<double>(num_samples));
    return true;
  }
  return divide_and_check(sums_E.mutable_data_ptr(), sums_E.numel(), sums_E.scalar_type(),
                          num_samples);
}

at::Tensor largest_of_all(at::Device device, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> largest;
  for (const at::Tensor& tensor : tensors)  // one read-only pass; a maximum keeps a NaN
    if (tensor.numel() > 0)
      largest.push_back(at::linalg_vector_norm(tensor, kInfinity, c10::nullopt, /*keepdim=*/false,
                                               wide_type(tensor)));
  if (largest.empty()) return at::zeros({1}, at::TensorOptions(at::kFloat).device(device));
  return at::stack(largest).amax().view({1});
}

/// Compares the bits of the magnitudes as integers: of two finite floats the larger one has the
/// larger bits after the sign. Infinity and NaN have the largest.
double largest_magnitude(const at::Tensor& values_E) {
  check(values_E.is_cpu() && values_E.scalar_type() == at::kFloat && values_E.is_contiguous(),
        "float32 on the CPU");
  const auto* items = static_cast<const int32_t*>(values_E.const_data_ptr());
  const int32_t largest = at::parallel_reduce(
      0, values_E.numel(), int64_t{1} << 18, 0,
      [items](int64_t begin, int64_t end, int32_t found) {
        for (int64_t i = begin; i < end; ++i)
          found = std::max(found, items[i] & std::numeric_limits<int32_t>::max());
        return found;
      },
      [](int32_t one, int32_t other) { return std::max(one, other); });
  const auto value = std::bit_cast<float>(largest);
  return std::isfinite(value) ? static_cast<double>(value) : kInfinity;
}

}  // namespace lockstep::dist
