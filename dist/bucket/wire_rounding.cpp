#include "dist/bucket/wire_rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nan_to_num.h>

#include "base/error.h"

namespace lockstep::dist {
namespace {

/// So many that what one pass writes is in a cache for the next one, on each of LibTorch's threads.
int64_t block_items() {
  const int num_threads = at::get_num_threads();
  return num_threads == 1 ? 1 << 14 : int64_t{num_threads} << 15;
}

/// part(begin, num_items) for each block of n items.
template <typename Part>
void in_blocks(int64_t num_items, const Part& part) {
  const int64_t block = block_items();
  for (int64_t begin = 0; begin < num_items; begin += block)
    part(begin, std::min(block, num_items - begin));
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor number_on(at::Device device, double value) {
  return at::full({}, value, at::TensorOptions(at::kDouble).device(device));
}

/// Of finite floats of 16 bits a larger magnitude has larger bits behind the sign; infinity and NaN
/// have the largest.
int largest_bits(const at::Tensor& wire_K) {
  const auto* items = static_cast<const uint16_t*>(wire_K.const_data_ptr());
  int largest = 0;
  for (int64_t i = 0; i < wire_K.numel(); ++i) largest = std::max(largest, items[i] & 0x7fff);
  return largest;
}

/// The same of float32, in one pass that makes no tensor.
double largest_of_floats(const at::Tensor& values_K) {
  const auto* items = static_cast<const int32_t*>(values_K.const_data_ptr());
  const int32_t largest = at::parallel_reduce(
      0, values_K.numel(), int64_t{1} << 18, 0,
      [items](int64_t begin, int64_t end, int32_t found) {
        for (int64_t i = begin; i < end; ++i)
          found = std::max(found, items[i] & std::numeric_limits<int32_t>::max());
        return found;
      },
      [](int32_t one, int32_t other) { return std::max(one, other); });
  const auto value = std::bit_cast<float>(largest);
  return std::isfinite(value) ? static_cast<double>(value) : kInfinity;
}

double value_of_bits(int bits, at::ScalarType dtype) {
  const auto low = static_cast<uint16_t>(bits);
  const double value = dtype == at::kHalf
                           ? static_cast<double>(c10::Half(low, c10::Half::from_bits()))
                           : static_cast<double>(c10::BFloat16(low, c10::BFloat16::from_bits()));
  return std::isfinite(value) ? value : kInfinity;
}

at::Tensor round_on_cpu(const at::Tensor& values_K, double scale, const at::Tensor& wire_K,
                        const at::Tensor& errors_K) {
  const at::Tensor factor = number_on(at::kCPU, scale);
  const at::Tensor scratch =
      at::empty({std::min(values_K.numel(), block_items())}, values_K.options());
  int largest = 0;
  in_blocks(values_K.numel(), [&](int64_t begin, int64_t num_items) {
    const at::Tensor to = wire_K.narrow(0, begin, num_items);
    const at::Tensor from = values_K.narrow(0, begin, num_items);
    at::Tensor scaled = scratch.narrow(0, 0, num_items);
    to.copy_(scale == 1 ? from : at::mul_out(scaled, from, factor));
    largest = std::max(largest, largest_bits(to));
    if (!errors_K.defined()) return;
    const at::Tensor error = errors_K.narrow(0, begin, num_items);
    error.copy_(from).sub_(scaled.copy_(to), 1 / scale);
  });
  return number_on(at::kCPU, value_of_bits(largest, wire_K.scalar_type()) / scale);
}

}  // namespace

at::Tensor round_to_wire(const at::Tensor& values_K, double scale, const at::Tensor& wire_K,
                         const at::Tensor& errors_K) {
  if (values_K.is_cpu()) return round_on_cpu(values_K, scale, wire_K, errors_K);
  check(!errors_K.defined(), "errors of rounding are kept on the CPU alone");
  wire_K.copy_(scale == 1 ? values_K : at::mul(values_K, scale));
  return largest_magnitude(wire_K).div_(scale);
}

void widen_from_wire(const at::Tensor& wire_K, double scale, const at::Tensor& values_K) {
  if (!values_K.is_cpu()) {
    values_K.copy_(wire_K);
    if (scale != 1) values_K.mul_(1 / scale);
    return;
  }
  in_blocks(values_K.numel(), [&](int64_t begin, int64_t num_items) {
    const at::Tensor to = values_K.narrow(0, begin, num_items);
    to.copy_(wire_K.narrow(0, begin, num_items));
    if (scale != 1) to.mul_(1 / scale);
  });
}

at::Tensor largest_magnitude(const at::Tensor& values_K) {
  if (values_K.numel() == 0) return number_on(values_K.device(), 0);
  if (values_K.is_cpu() && values_K.scalar_type() == at::kFloat && values_K.is_contiguous())
    return number_on(at::kCPU, largest_of_floats(values_K));
  return at::nan_to_num(at::amax(at::abs(values_K)).to(at::kDouble), kInfinity, kInfinity);
}

}  // namespace lockstep::dist
