#include "recal/magnitude_mask.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <type_traits>
#include <vector>

#include <ATen/ops/ones.h>

#include "base/error.h"

namespace lockstep::recal {
namespace {

/// Magnitudes as integers: the bits of a float without its sign rise with its magnitude, and NaN is
/// above all, so the order is total.
template <typename Bits>
Bits magnitude(Bits bits) {
  return static_cast<Bits>(bits &
                           static_cast<Bits>(std::numeric_limits<std::make_signed_t<Bits>>::max()));
}

/// The num_smallest-th smallest magnitude among the kept items.
template <typename Bits>
Bits threshold(std::span<const Bits> values_K, std::span<const uint8_t> mask_K, int64_t num_kept,
               int64_t num_smallest) {
  std::vector<Bits> kept;
  kept.reserve(static_cast<size_t>(num_kept));
  for (size_t i = 0; i < values_K.size(); ++i)
    if (mask_K[i] != 0) kept.push_back(magnitude(values_K[i]));
  const auto nth = kept.begin() + (num_smallest - 1);
  std::nth_element(kept.begin(), nth, kept.end());
  return *nth;
}

template <typename Bits>
void drop_smallest(std::span<const Bits> values_K, std::span<uint8_t> mask_K, int64_t num_kept,
                   int64_t num_smallest) {
  const Bits limit = threshold<Bits>(values_K, mask_K, num_kept, num_smallest);
  int64_t num_ties = num_smallest;
  for (size_t i = 0; i < values_K.size(); ++i) {
    if (mask_K[i] == 0 || magnitude(values_K[i]) >= limit) continue;
    mask_K[i] = 0;
    --num_ties;
  }
  for (size_t i = 0; num_ties > 0; ++i) {  // lowest index first
    if (mask_K[i] == 0 || magnitude(values_K[i]) != limit) continue;
    mask_K[i] = 0;
    --num_ties;
  }
}

template <typename Bits>
void drop_smallest(const at::Tensor& values, at::Tensor& mask, int64_t num_kept,
                   int64_t num_smallest) {
  const auto num_items = static_cast<size_t>(values.numel());
  drop_smallest<Bits>(std::span(static_cast<const Bits*>(values.const_data_ptr()), num_items),
                      std::span(mask.mutable_data_ptr<uint8_t>(), num_items), num_kept,
                      num_smallest);
}

}  // namespace

int64_t num_to_prune(double sparsity, int64_t num_weights) {
  return std::llround(sparsity * static_cast<double>(num_weights));
}

int64_t prune_smallest(const at::Tensor& values, double sparsity, at::Tensor mask) {
  check(values.is_cpu() && mask.is_cpu() && mask.scalar_type() == at::kByte &&
            mask.is_contiguous() && values.sizes() == mask.sizes() && values.is_floating_point(),
        "prune_smallest needs CPU tensors of one shape, floats and a contiguous uint8 mask");
  const at::Tensor row_major = values.detach().contiguous();
  const auto* flags = mask.const_data_ptr<uint8_t>();
  const int64_t num_kept =
      std::count_if(flags, flags + mask.numel(), [](uint8_t flag) { return flag != 0; });
  const int64_t num_new = num_to_prune(sparsity, values.numel()) - (values.numel() - num_kept);
  if (num_new <= 0) return 0;
  switch (values.element_size()) {
    case 2:
      drop_smallest<uint16_t>(row_major, mask, num_kept, num_new);
      break;
    case 4:
      drop_smallest<uint32_t>(row_major, mask, num_kept, num_new);
      break;
    case 8:
      drop_smallest<uint64_t>(row_major, mask, num_kept, num_new);
      break;
    default:
      check(false, "a weight's dtype has 2, 4 or 8 bytes");
  }
  return num_new;
}

at::Tensor magnitude_mask(const at::Tensor& values, double sparsity) {
  at::Tensor mask = at::ones(values.sizes(), at::kByte);
  prune_smallest(values, sparsity, mask);
  return mask;
}

}  // namespace lockstep::recal
