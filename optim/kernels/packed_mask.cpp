#include "optim/kernels/packed_mask.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "base/bits/bit_mask.h"
#include "base/bits/kept_bits.h"
#include "base/error.h"

namespace lockstep::optim {
namespace {

constexpr int kItemBytes = sizeof(float);

}  // namespace

PackedMask::PackedMask(std::span<const uint8_t> buffer_bits, int64_t begin_E, int64_t num_elements)
    : num_elements_(num_elements), bits_(static_cast<size_t>(num_mask_bytes(num_elements))) {
  // Shifts the bits so that the region begins at bit 0, which all kernels expect.
  copy_bits(buffer_bits.data(), begin_E, num_elements, bits_.data(), 0);
  for (int64_t begin = 0; begin < num_elements; begin += kChunkElements)
    // Counted once here, so that threads can start at any chunk.
    begins_K_.push_back(
        begins_K_.back() +
        count_kept(bits_.data() + begin / 8, std::min(kChunkElements, num_elements - begin)));
}

PackedMask::Chunk PackedMask::chunk(int64_t index) const {
  const int64_t begin_R = index * kChunkElements;
  const auto chunk = static_cast<size_t>(index);
  return {.begin_R = begin_R,
          .num_elements = std::min(kChunkElements, num_elements_ - begin_R),
          .begin_K = begins_K_[chunk],
          .num_kept = begins_K_[chunk + 1] - begins_K_[chunk],
          .bits = bits_.data() + begin_R / 8};
}

int64_t PackedMask::num_kept_before(int64_t at_R) const {
  // Chunks before this one are counted already; only a part of this chunk remains.
  const int64_t index = at_R / kChunkElements, begin_R = index * kChunkElements;
  return begins_K_[static_cast<size_t>(index)] + cut(begin_R, at_R - begin_R).num_kept();
}

at::Tensor PackedMask::pack(const at::Tensor& dense_R) const {
  check(dense_R.numel() == num_elements_, "a mask packs its own region");
  at::Tensor packed_K = at::empty({num_kept()}, dense_R.options());
  pack_kept(dense_R.const_data_ptr(), bits_.data(), num_elements_, kItemBytes,
            packed_K.mutable_data_ptr());
  return packed_K;
}

void PackedMask::unpack(const at::Tensor& packed_K, const at::Tensor& dense_R) const {
  check(dense_R.numel() == num_elements_ && packed_K.numel() == num_kept(),
        "a mask unpacks its own region");
  unpack_kept(packed_K.const_data_ptr(), bits_.data(), num_elements_, kItemBytes,
              dense_R.mutable_data_ptr());
}

void PackedMask::zero_pruned(const at::Tensor& dense_R) const {
  check(dense_R.numel() == num_elements_, "a mask acts on its own region");
  lockstep::zero_pruned(dense_R.mutable_data_ptr(), bits_.data(), num_elements_, kItemBytes);
}

}  // namespace lockstep::optim
