#include "optim/optimizer_state.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <malloc.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "base/tensors/tensor_memory.h"
#include "optim/flat_params.h"
#include "optim/update_region.h"

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

// OptimizerState: conversions between the three forms of slots. They work slot by slot and free the
// old form as they go, to keep the peak memory low.

namespace {

/// True if slots of this buffer are packed under this mask. Only own kernels can use packed slots.
bool packs(const FlatBuffer& buffer, std::span<const uint8_t> bits) {
  if (bits.empty() || !takes_kernels(buffer)) return false;
  const int64_t num_elements = buffer.values_E.numel();
  const int64_t num_kept = count_kept(bits.data(), num_elements);
  return static_cast<double>(num_kept) <=
         OptimizerState::kPackBelow * static_cast<double>(num_elements);
}

/// True if the single dense part is the whole buffer; then no form needs a copy.
bool is_whole(const std::vector<SlotPart>& parts, int64_t num_elements) {
  return parts.size() == 1 && !parts.front().is_packed() &&
         parts.front().region.num_elements() == num_elements;
}

at::Tensor zeros_beside(const FlatBuffer& buffer) {
  return zeros_on_large_pages(buffer.values_E.numel(), buffer.values_E.options());
}

/// Joins the parts of a slot. A part that covers everything is the result itself.
at::Tensor joined(const FlatBuffer& buffer, const std::vector<SlotPart>& parts, size_t slot) {
  if (is_whole(parts, buffer.values_E.numel())) return parts.front().slots[slot];
  at::Tensor whole_E = zeros_beside(buffer);
  for (const SlotPart& part : parts) {
    const at::Tensor dense_R = part.of(whole_E);
    if (part.is_packed())
      part.kept.unpack(part.slots[slot], dense_R);
    else
      dense_R.copy_(part.slots[slot]);
  }
  return whole_E;
}

/// Returns one part's slot from the whole form: packed, the tensor itself, or a copy.
at::Tensor taken_from(const at::Tensor& whole_E, const SlotPart& part) {
  const at::Tensor dense_R = part.of(whole_E);
  if (part.is_packed()) return part.kept.pack(dense_R);
  return dense_R.numel() == whole_E.numel() ? whole_E : dense_R.clone();
}

/// Returns zeros for a part's slot that has no memory yet.
at::Tensor absent(const FlatBuffer& buffer, const SlotPart& part) {
  return zeros_on_large_pages(part.is_packed() ? part.kept.num_kept() : part.region.num_elements(),
                              buffer.values_E.options());
}

/// Appends a piece of a part, with views of the part's slots.
void add_cut(const SlotPart& part, const ParamShard& region, std::vector<SlotPart>* cut) {
  if (region.num_elements() == 0) return;
  SlotPart piece{.region = region};
  // Positions in a packed slot count kept elements only.
  const int64_t begin_R = region.begin_E - part.region.begin_E;
  int64_t begin = begin_R, num_items = region.num_elements();
  if (part.is_packed()) {
    piece.kept = part.kept.cut(begin_R, region.num_elements());
    begin = part.kept.num_kept_before(begin_R);
    num_items = piece.kept.num_kept();
  }
  for (const at::Tensor& slot : part.slots) piece.slots.push_back(slot.narrow(0, begin, num_items));
  cut->push_back(std::move(piece));
}

void zero_pruned_anywhere(const at::Tensor& whole_E, std::span<const uint8_t> bits) {
  const at::Tensor there = whole_E.cpu();  // the same tensor if it is on the CPU
  zero_pruned(there.mutable_data_ptr(), bits.data(), there.numel(),
              static_cast<int>(there.element_size()));
  if (!whole_E.is_cpu()) whole_E.copy_(there);
}

/// Zeroes the gaps between parts (other ranks' elements), and pruned elements of packed parts.
void zero_foreign_and_pruned(const at::Tensor& whole_E, const std::vector<SlotPart>& parts) {
  int64_t done_E = 0;
  for (const SlotPart& part : parts) {
    whole_E.narrow(0, done_E, part.region.begin_E - done_E).zero_();
    if (part.is_packed()) part.kept.zero_pruned(part.of(whole_E));
    done_E = part.region.end_E;
  }
  whole_E.narrow(0, done_E, whole_E.numel() - done_E).zero_();
}

void require_apart(const std::vector<SlotPart>& parts, int64_t num_elements) {
  int64_t done_E = 0;
  for (const SlotPart& part : parts) {
    check(part.region.begin_E >= done_E && part.region.num_elements() > 0,
          "regions of a buffer do not overlap");
    done_E = part.region.end_E;
  }
  check(done_E <= num_elements, "a region lies inside its buffer");
}

}  // namespace

OptimizerState::OptimizerState(std::vector<FlatBuffer>& buffers, const ParamTable& params)
    : buffers_(buffers), params_(params) {
  own_all();
}

void OptimizerState::drop_cut() {
  cut_regions_.clear();
  cut_ = {};
}

void OptimizerState::own_all() {
  drop_cut();
  is_divided_ = false;
  stores_.clear();
  for (size_t b = 0; b < buffers_.size(); ++b)
    stores_.push_back({.parts = {{.region = {b, 0, buffers_[b].values_E.numel()}}}});
}

void OptimizerState::set_shards(const std::vector<ParamShard>& regions) {
  const at::NoGradGuard no_grad;
  drop_cut();
  is_divided_ = true;
  for (size_t b = 0; b < buffers_.size(); ++b) {
    if (buffers_[b].frozen) continue;
    BufferStore& store = stores_[b];
    // Absent slots are zeros without memory; no conversion is needed.
    const bool is_absent = store.is_absent();
    // Through the whole form: values of elements that stay owned are kept.
    if (!is_absent) expand(b);
    store.parts.clear();
    for (const ParamShard& region : regions)
      if (region.buffer == b && region.num_elements() != 0) store.parts.push_back({region});
    std::sort(store.parts.begin(), store.parts.end(), [](const auto& one, const auto& other) {
      return one.region.begin_E < other.region.begin_E;
    });
    require_apart(store.parts, buffers_[b].values_E.numel());
    if (!is_absent) take_back(b);
  }
  malloc_trim(0);  // returns the memory of other ranks' slots to the system
}

std::vector<ElementRange> OptimizerState::owned_of(size_t buffer, const FlatSlice& slice) const {
  std::vector<ElementRange> owned;
  for (const SlotPart& part : stores_[buffer].parts) {
    const int64_t begin_E = std::max(part.region.begin_E - slice.offset_E, int64_t{0});
    const int64_t end_E = std::min(part.region.end_E - slice.offset_E, slice.num_elements);
    if (begin_E < end_E) owned.push_back({begin_E, end_E});
  }
  return owned;
}

void OptimizerState::set_kept(size_t buffer, std::span<const uint8_t> bits) {
  const at::NoGradGuard no_grad;
  const FlatBuffer& flat = buffers_.at(buffer);
  if (flat.frozen || names_.empty()) return;
  drop_cut();
  check(bits.empty() || static_cast<int64_t>(bits.size()) == num_mask_bytes(flat.values_E.numel()),
        "a mask has a bit for each element of its buffer");
  BufferStore& store = stores_[buffer];
  const bool packs_now = packs(flat, bits);
  const bool was_packed = std::any_of(store.parts.begin(), store.parts.end(),
                                      [](const SlotPart& part) { return part.is_packed(); });
  // Nothing was packed and nothing will be.
  if (bits.empty() && !was_packed) return;
  const bool is_absent = store.is_absent();
  if (!is_absent) expand(buffer);
  for (SlotPart& part : store.parts)
    part.kept = packs_now ? PackedMask(bits, part.region.begin_E, part.region.num_elements())
                          : PackedMask();
  if (is_absent) return;
  // Not packed: pruned elements must be zero, since their slots would move them.
  if (!bits.empty() && !packs_now)
    for (const at::Tensor& whole_E : store.whole) zero_pruned_anywhere(whole_E, bits);
  take_back(buffer);
  if (is_divided_) malloc_trim(0);  // as in set_shards()
}

void OptimizerState::rebuild(const std::vector<FlatBuffer>& buffers_before) {
  const at::NoGradGuard no_grad;
  std::vector<BufferStore> before = std::exchange(stores_, {});
  own_all();
  if (std::all_of(before.begin(), before.end(), [](const auto& one) { return one.is_absent(); }))
    return;
  for (size_t b = 0; b < before.size(); ++b) expand(buffers_before[b], &before[b]);
  for (size_t slot = 0; slot < names_.size(); ++slot) {
    std::vector<at::Tensor> by_param(params_.size());
    for (size_t b = 0; b < before.size(); ++b) {
      // One slot at a time; the old one is freed before the next is copied.
      const at::Tensor whole_E = std::exchange(before[b].whole[slot], {});
      for (const FlatSlice& slice : buffers_before[b].slices)
        by_param[static_cast<size_t>(slice.param)] = view_of_slice(whole_E, slice, params_);
    }
    for (size_t b = 0; b < buffers_.size(); ++b) {
      at::Tensor whole_E = zeros_beside(buffers_[b]);
      for (const FlatSlice& slice : buffers_[b].slices)
        view_of_slice(whole_E, slice, params_).copy_(by_param[static_cast<size_t>(slice.param)]);
      stores_[b].whole.push_back(whole_E);
    }
  }
}

CutParts& OptimizerState::cut_at(const std::vector<ParamShard>& regions) {
  // Late shards are the same at every step, so the cut is computed once.
  if (!cut_regions_.empty() && cut_regions_ == regions) return cut_;
  drop_cut();
  std::vector<ParamShard> ascending = regions;
  std::sort(ascending.begin(), ascending.end(),
            [](const auto& one, const auto& other) { return one.begin_E < other.begin_E; });
  for (size_t b = 0; b < stores_.size(); ++b) {
    if (buffers_[b].frozen) continue;
    for (const SlotPart& part : stores_[b].parts) {
      int64_t done_E = part.region.begin_E;
      for (const ParamShard& region : ascending) {
        if (region.buffer != b || !part.holds(region)) continue;
        add_cut(part, {b, done_E, region.begin_E}, &cut_.others);
        done_E = region.end_E;
      }
      add_cut(part, {b, done_E, part.region.end_E}, &cut_.others);
    }
  }
  for (const ParamShard& region : regions)
    for (const SlotPart& part : stores_.at(region.buffer).parts)
      if (part.holds(region)) add_cut(part, region, &cut_.regions);
  // Regions that cross a border of parts are in none of them.
  check(cut_.regions.size() == regions.size(), "a late region lies inside an owned one");
  cut_regions_ = regions;
  return cut_;
}

const std::vector<at::Tensor>& OptimizerState::expand(size_t buffer) {
  const at::NoGradGuard no_grad;
  drop_cut();
  return expand(buffers_.at(buffer), &stores_[buffer]);
}

const std::vector<at::Tensor>& OptimizerState::expand(const FlatBuffer& buffer,
                                                      BufferStore* store) const {
  if (!store->whole.empty()) return store->whole;
  for (size_t slot = 0; slot < names_.size(); ++slot) {
    store->whole.push_back(store->is_in_parts ? joined(buffer, store->parts, slot)
                                              : zeros_beside(buffer));
    if (!store->is_in_parts) continue;
    for (SlotPart& part : store->parts) part.slots[slot] = at::Tensor();
  }
  store->is_in_parts = false;
  return store->whole;
}

const std::vector<at::Tensor>& OptimizerState::expand_clean(size_t buffer) {
  const at::NoGradGuard no_grad;
  // Only an existing whole form can have been written; a new one is clean.
  for (const at::Tensor& whole_E : stores_.at(buffer).whole)
    zero_foreign_and_pruned(whole_E, stores_[buffer].parts);
  return expand(buffer);
}

void OptimizerState::take_back() {
  const bool were_whole =
      is_divided_ && std::any_of(stores_.begin(), stores_.end(), [](auto& one) {
        return !one.whole.empty() && !is_whole(one.parts, one.whole.front().numel());
      });
  for (size_t b = 0; b < stores_.size(); ++b) take_back(b);
  if (were_whole) malloc_trim(0);  // as in set_shards()
}

void OptimizerState::take_back(size_t buffer) {
  BufferStore& store = stores_[buffer];
  if (store.is_in_parts) return;
  for (SlotPart& part : store.parts) part.slots.resize(names_.size());
  for (size_t slot = 0; slot < names_.size(); ++slot) {
    for (SlotPart& part : store.parts)
      part.slots[slot] = store.whole.empty() ? absent(buffers_[buffer], part)
                                             : taken_from(store.whole[slot], part);
    // Freed before the next slot needs memory.
    if (!store.whole.empty()) store.whole[slot] = at::Tensor();
  }
  store.whole.clear();
  store.is_in_parts = true;
}

int64_t OptimizerState::num_bytes() const {
  size_t num_bytes = 0;
  for (const BufferStore& store : stores_) {
    for (const at::Tensor& whole_E : store.whole) num_bytes += whole_E.nbytes();
    if (!store.is_in_parts) continue;
    for (const SlotPart& part : store.parts)
      for (const at::Tensor& slot : part.slots) num_bytes += slot.nbytes();
  }
  return static_cast<int64_t>(num_bytes);
}

}  // namespace lockstep::optim
