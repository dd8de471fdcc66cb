#include "recal/masks/mask_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/bits/bit_mask.h"
#include "base/error.h"

namespace lockstep::recal {
// Masks are bits on the CPU; weights may have any device and layout. This file converts between
// them.
namespace {

int item_bytes(const at::Tensor& values) { return static_cast<int>(values.element_size()); }

const uint8_t* bits_of(const at::Tensor& kept_bits, const at::Tensor& values) {
  check(kept_bits.is_cpu() && kept_bits.is_contiguous() &&
            kept_bits.numel() == num_mask_bytes(values.numel()),
        "a mask has a bit for each value");
  return kept_bits.const_data_ptr<uint8_t>();
}

at::Tensor nonzero_bits(const at::Tensor& values) {
  const at::Tensor host = row_major_on_cpu(values);
  const at::Tensor bits = at::zeros({num_mask_bytes(values.numel())}, at::kByte);
  keep_nonzero(host.const_data_ptr(), host.numel(), item_bytes(host),
               bits.mutable_data_ptr<uint8_t>());
  return bits;
}

}  // namespace

at::Tensor new_kept_bits(int64_t num_items) {
  const at::Tensor bits = at::empty({num_mask_bytes(num_items)}, at::kByte);
  keep_all(bits.mutable_data_ptr<uint8_t>(), num_items);
  return bits;
}

at::Tensor kept_flags(const at::Tensor& kept_bits, at::IntArrayRef sizes) {
  const at::Tensor flags = at::empty(sizes, at::kByte);
  const uint8_t* bits = bits_of(kept_bits, flags);
  auto* flag = flags.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < flags.numel(); ++i) flag[i] = is_kept(bits, i) ? 1 : 0;
  return flags;
}

at::Tensor row_major_on_cpu(const at::Tensor& values) { return values.detach().cpu().contiguous(); }

void drop_zeros(const at::Tensor& values, const at::Tensor& kept_bits) {
  kept_bits.bitwise_and_(nonzero_bits(values));
}

void zero_pruned_values(const at::Tensor& values, const at::Tensor& kept_bits,
                        const at::Tensor& device_mask) {
  // Fast path: reads the bits directly and allocates nothing. Everything else needs a bool mask.
  if (values.is_cpu() && values.is_contiguous())
    return zero_pruned(values.mutable_data_ptr(), bits_of(kept_bits, values), values.numel(),
                       item_bytes(values));
  const at::NoGradGuard no_grad;
  values.detach().masked_fill_(
      device_mask.defined() ? device_mask
                            : kept_flags(kept_bits, values.sizes()).eq(0).to(values.device()),
      0);
}

int64_t count_pruned_nonzeros(const at::Tensor& values, const at::Tensor& kept_bits) {
  // Nonzero and not kept: such a weight grew back after it was pruned.
  const at::Tensor regrown = nonzero_bits(values).bitwise_and_(kept_bits.bitwise_not());
  return count_kept(bits_of(regrown, values), values.numel());
}

}  // namespace lockstep::recal
