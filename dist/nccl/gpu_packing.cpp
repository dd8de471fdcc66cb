// Computes word masks and prefix sums on the host once per mask; the kernels use them every step.
#include "dist/nccl/gpu_packing.h"

#include <bit>
#include <cstring>
#include <utility>

#include <ATen/ops/zeros.h>

#include "base/bits/bit_mask.h"
#include "base/error.h"

namespace lockstep::dist::nccl {
namespace {

void check_shapes(const DeviceMask& mask, const at::Tensor& items_E, const at::Tensor& packed_K) {
  const auto width = items_E.element_size();
  check(items_E.is_contiguous() && packed_K.is_contiguous() && items_E.numel() == mask.num_items &&
            packed_K.numel() == mask.num_kept && packed_K.scalar_type() == items_E.scalar_type() &&
            (width == 2 || width == 4 || width == 8),
        "packed items do not fit their mask");
}

}  // namespace

MaskView view_of(const DeviceMask& mask) {
  return {static_cast<const uint64_t*>(mask.words_W.const_data_ptr()),
          mask.before_W.const_data_ptr<int64_t>()};
}

GpuPacking::GpuPacking(std::shared_ptr<GpuCalls> gpu) : gpu_(std::move(gpu)) {}

DeviceMask GpuPacking::to_device(const uint8_t* bits, int64_t num_items) const {
  const int64_t num_words = (num_items + kItemsPerWord - 1) / kItemsPerWord;
  const at::Tensor words_W = at::zeros({num_words}, at::kLong);
  const at::Tensor before_W = at::zeros({num_words}, at::kLong);
  auto* words = static_cast<uint64_t*>(words_W.mutable_data_ptr());
  auto* before = before_W.mutable_data_ptr<int64_t>();
  if (num_items > 0) std::memcpy(words, bits, static_cast<size_t>(num_mask_bytes(num_items)));
  // Prefix sums by word: with them each thread finds the position of its item alone.
  int64_t num_kept = 0;
  for (int64_t i = 0; i < num_words; ++i) {
    before[i] = num_kept;
    num_kept += std::popcount(words[i]);
  }
  const auto on_device = gpu_->use_device();
  return {num_items, num_kept, words_W.to(gpu_->device()), before_W.to(gpu_->device())};
}

void GpuPacking::pack_kept(const DeviceMask& mask, const at::Tensor& items_E,
                           const at::Tensor& packed_K) const {
  check_shapes(mask, items_E, packed_K);
  const auto on_device = gpu_->use_device();
  gpu_->pack_kept(mask, items_E, packed_K);
}

void GpuPacking::unpack_kept(const DeviceMask& mask, const at::Tensor& packed_K,
                             const at::Tensor& items_E) const {
  check_shapes(mask, items_E, packed_K);
  const auto on_device = gpu_->use_device();
  gpu_->unpack_kept(mask, packed_K, items_E);
}

}  // namespace lockstep::dist::nccl
