// Update and clipping of gradients.
#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <malloc.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "base/tensors/square_sums.h"
#include "base/tensors/tensor_memory.h"
#include "optim/flat_params.h"

namespace lockstep::optim {

bool Optimizer::reads_kept_alone(size_t buffer) {
  return takes_kernels(buffers_.at(buffer)) &&
         std::ranges::all_of(slots_.parts(buffer), &SlotPart::is_packed);
}

bool Optimizer::is_excluded(int64_t param) const {
  return std::binary_search(excluded_.begin(), excluded_.end(), param);
}

int64_t Optimizer::updates_of(int64_t param) const {
  return counts_own_updates_ ? own_updates_[static_cast<size_t>(param)] : num_updates_;
}

void Optimizer::count_updates() {
  ++num_updates_;
  counted_.clear();
  if (!counts_own_updates_) return;
  for (const FlatBuffer& buffer : buffers_)
    for (const FlatSlice& slice : buffer.slices) {
      if (buffer.frozen || is_excluded(slice.param)) continue;
      int64_t& own = own_updates_[static_cast<size_t>(slice.param)];
      // Below 0: a checkpoint without this entry; then all updates so far count.
      own = own < 0 ? num_updates_ : own + 1;
      counted_.push_back(slice.param);
    }
}

void Optimizer::uncount() {
  --num_updates_;
  // Exactly the parameters that the skipped step counted.
  for (const int64_t param : counted_) --own_updates_[static_cast<size_t>(param)];
  counted_.clear();
}

/// Returns the number of updates of most parameters.
int64_t Optimizer::usual_updates() const {
  return counted_.empty() ? num_updates_ : updates_of(counted_.front());
}

std::vector<Optimizer::Apart> Optimizer::regions_apart() {
  std::vector<Apart> apart;
  if (excluded_.empty() && !counts_own_updates_) return apart;
  const int64_t usual = usual_updates();
  for (size_t b = 0; b < buffers_.size(); ++b) {
    if (buffers_[b].frozen) continue;
    for (const SlotPart& part : slots_.parts(b)) {
      // True if the previous slice of this part ended apart, so that adjacent ones may be joined.
      bool joins = false;
      for (const FlatSlice& slice : buffers_[b].slices) {
        const ParamShard common{b, std::max(part.region.begin_E, slice.offset_E),
                                std::min(part.region.end_E, slice.offset_E + slice.num_elements)};
        if (common.num_elements() <= 0) continue;
        const int64_t num_updates = is_excluded(slice.param) ? 0 : updates_of(slice.param);
        joins = joins && num_updates != usual && apart.back().num_updates == num_updates;
        if (joins)
          apart.back().region.end_E = common.end_E;
        else if (num_updates != usual)
          apart.push_back({common, num_updates});
        joins = num_updates != usual;
      }
    }
  }
  return apart;
}

void Optimizer::update_part(SlotPart& part, const StepRates& rates) {
  const FlatBuffer& buffer = buffers_[part.region.buffer];
  GroupRates own = rates[static_cast<size_t>(buffer.group)];
  own.learning_rate *= buffer.rate_multiplier;
  update(buffer, &part, own);
}

/// Updates all regions: those of `apart` with their own update counts, the others as usual.
void Optimizer::update_with_own_counts(const std::vector<Apart>& apart, const StepRates& rates) {
  std::vector<ParamShard> regions;
  for (const Apart& one : apart) regions.push_back(one.region);
  CutParts& cut = slots_.cut_at(regions);
  for (SlotPart& part : cut.others) update_part(part, rates);
  for (size_t i = 0; i < apart.size(); ++i) {
    updates_of_part_ = apart[i].num_updates;
    // 0: excluded.
    if (updates_of_part_ > 0) update_part(cut.regions[i], rates);
  }
}

/// Updates late shards after all others, each when its gradients have arrived.
void Optimizer::update_in_turn(const PendingShards& late, const StepRates& rates) {
  if (late.regions.empty()) {
    for (size_t b = 0; b < buffers_.size(); ++b)
      if (!buffers_[b].frozen)
        for (SlotPart& part : slots_.parts(b)) update_part(part, rates);
    return;
  }
  CutParts& cut = slots_.cut_at(late.regions);
  for (SlotPart& part : cut.others) update_part(part, rates);
  for (SlotPart& part : cut.regions) {
    late.wait_for_next();
    update_part(part, rates);
  }
}

void Optimizer::step(const StepRates& rates, const PendingShards& late,
                     const at::Tensor& found_inf) {
  check(!found_inf.defined() || (takes_found_inf() && late.regions.empty()),
        "a rule that reads a number on the device, and no late region");
  const at::NoGradGuard no_grad;
  slots_.to_parts();
  count_updates();
  found_inf_ = found_inf;
  updates_of_part_ = usual_updates();
  const std::vector<Apart> apart = regions_apart();
  if (apart.empty() && !slots_.is_quantized()) {
    update_in_turn(late, rates);
  } else {
    // Apart regions and late ones may overlap, and late ones may divide a block of 8-bit slots. So
    // wait for all late ones first.
    for (size_t i = 0; i < late.regions.size(); ++i) late.wait_for_next();
    apart.empty() ? update_in_turn({}, rates) : update_with_own_counts(apart, rates);
  }
  end_step();
  excluded_.clear();
}

// Zeros are restored first, so that saved state is the same however slots were stored.
void Optimizer::list_slots(size_t buffer, StateList* list) {
  const std::vector<at::Tensor>& whole = slots_.expand_clean(buffer);
  for (size_t slot = 0; slot < whole.size(); ++slot)
    for (const FlatSlice& slice : buffers_[buffer].slices) {
      StateEntry entry{.key = fmt::format("optimizer/{}/{}",
                                          slashed(params_[static_cast<size_t>(slice.param)].name),
                                          slots_.names()[slot]),
                       .tensor = view_of_slice(whole[slot], slice, params_)};
      // Checkpoints write each element once, on the rank that owns it.
      if (slots_.is_divided(buffer)) entry.held = slots_.owned_of(buffer, slice);
      entry.steady = true;
      list->push_back(std::move(entry));
    }
}

StateList Optimizer::state() {
  StateList list{{"optimizer/iterations", view_of(&num_updates_), nullptr}};
  for (size_t i = 0; i < params_.size() && counts_own_updates_; ++i)
    list.push_back({.key = fmt::format("optimizer/{}/updates", slashed(params_[i].name)),
                    .tensor = view_of(&own_updates_[i]),
                    .value_if_missing = -1});
  for (size_t b = 0; b < buffers_.size(); ++b) list_slots(b, &list);
  return list;
}

StateList Optimizer::sharded_state() {
  StateList list;
  for (size_t b = 0; b < buffers_.size(); ++b)
    if (slots_.is_divided(b)) list_slots(b, &list);
  return list;
}

void Optimizer::reset_momentum(int64_t param) {
  const std::vector<at::Tensor> slots = slots_of(param);
  for (size_t i = 0; i < slots.size(); ++i)
    if (slots_.names()[i] == "momentum" || slots_.names()[i] == "m") slots[i].zero_();
}

std::vector<at::Tensor> Optimizer::slots_of(int64_t param) {
  std::vector<at::Tensor> found;
  for (size_t b = 0; b < buffers_.size(); ++b)
    for (const FlatSlice& slice : buffers_[b].slices) {
      if (slice.param != param) continue;
      for (const at::Tensor& whole_E : slots_.expand(b))
        found.push_back(view_of_slice(whole_E, slice, params_));
    }
  return found;
}

static at::Tensor gradients_of(const std::vector<FlatBuffer>& buffers, const ParamShard& region) {
  return buffers[region.buffer].grads_E.narrow(0, region.begin_E, region.num_elements());
}

std::optional<double> clip_gradients(const ClipOptions& options, std::vector<FlatBuffer>& buffers,
                                     const std::vector<ParamShard>& regions,
                                     std::optional<double> squared_grad_norm) {
  std::optional<double> norm;
  if (options.norm) {
    check(squared_grad_norm.has_value(), "clipping by norm needs the sum of squares");
    norm = std::sqrt(*squared_grad_norm);
    // Every rank scales its own regions by the same factor, since the norm is equal on all ranks.
    if (*norm > *options.norm)
      for (const ParamShard& region : regions)
        gradients_of(buffers, region).mul_(*options.norm / *norm);
  }
  if (options.value)
    for (const ParamShard& region : regions)
      gradients_of(buffers, region).clamp_(-*options.value, *options.value);
  return norm;
}

// Conversions between the three forms of slots (see the header). They work slot by slot and free
// the old form as they go, to keep the peak memory low.

/// True if slots of this buffer are packed under this mask. Only own kernels can use packed slots.
static bool packs(const FlatBuffer& buffer, std::span<const uint8_t> bits) {
  if (bits.empty() || buffer.is_matrix || !takes_kernels(buffer)) return false;
  const int64_t num_elements = buffer.values_E.numel();
  const int64_t num_kept = count_kept(bits.data(), num_elements);
  return static_cast<double>(num_kept) <=
         OptimizerState::kPackBelow * static_cast<double>(num_elements);
}

/// True if the single dense part is the whole buffer; then no form needs a copy.
static bool is_whole(const std::vector<SlotPart>& parts, int64_t num_elements) {
  return parts.size() == 1 && !parts.front().is_packed() &&
         parts.front().region.num_elements() == num_elements;
}

static at::Tensor zeros_like_values(const FlatBuffer& buffer) {
  return zeros_on_large_pages(buffer.values_E.numel(), buffer.values_E.options());
}

bool OptimizerState::quantizes(const FlatBuffer& buffer) const {
  return is_quantized_ && takes_kernels(buffer);
}

/// Joins the parts of a slot. A part that covers everything is the result itself.
at::Tensor OptimizerState::joined(const FlatBuffer& buffer, const std::vector<SlotPart>& parts,
                                  const std::vector<StateBlocks>& blocks, size_t slot) const {
  if (!quantizes(buffer) && is_whole(parts, buffer.values_E.numel()))
    return parts.front().slots[slot];
  at::Tensor whole_E = zeros_like_values(buffer);
  for (const SlotPart& part : parts) {
    const at::Tensor dense_R = part.of(whole_E);
    if (part.is_quantized())
      dequantize(blocks[part.region.buffer], part.region, is_positive(slot),
                 {part.slots[slot], part.scales[slot]}, dense_R);
    else if (part.is_packed())
      part.kept.unpack(part.slots[slot], dense_R);
    else
      dense_R.copy_(part.slots[slot]);
  }
  return whole_E;
}

/// Sets one part's slot from the whole form: bytes, packed, the tensor itself, or a copy.
void OptimizerState::take_from(const at::Tensor& whole_E, const FlatBuffer& buffer, size_t slot,
                               SlotPart* part) const {
  const at::Tensor dense_R = part->of(whole_E);
  if (quantizes(buffer)) {
    allocate(buffer, slot, part);
    lockstep::optim::quantize(blocks(part->region.buffer), part->region, is_positive(slot), dense_R,
                              {part->slots[slot], part->scales[slot]});
  } else if (part->is_packed()) {
    part->slots[slot] = part->kept.pack(dense_R);
  } else {
    part->slots[slot] = dense_R.numel() == whole_E.numel() ? whole_E : dense_R.clone();
  }
}

/// Gives zeros to a part's slot that has no memory yet.
void OptimizerState::allocate(const FlatBuffer& buffer, size_t slot, SlotPart* part) const {
  if (quantizes(buffer)) {
    part->scales.resize(part->slots.size());
    auto [codes_R, scales_B] = zero_slot(blocks(part->region.buffer), part->region);
    part->slots[slot] = std::move(codes_R);
    part->scales[slot] = std::move(scales_B);
    return;
  }
  part->slots[slot] =
      zeros_on_large_pages(part->is_packed() ? part->kept.num_kept() : part->region.num_elements(),
                           buffer.values_E.options());
}

/// Appends a piece of a part, with views of the part's slots. `blocks`: those of its buffer, if the
/// slots are bytes.
static void add_cut(const SlotPart& part, const ParamShard& region, const StateBlocks* blocks,
                    std::vector<SlotPart>* cut) {
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
  for (const at::Tensor& scales_B : part.scales) {
    const int64_t first = blocks->before(region.begin_E);
    piece.scales.push_back(scales_B.narrow(0, first - blocks->before(part.region.begin_E),
                                           blocks->before(region.end_E) - first));
  }
  cut->push_back(std::move(piece));
}

static void zero_pruned_anywhere(const at::Tensor& whole_E, std::span<const uint8_t> bits) {
  const at::Tensor there = whole_E.cpu();  // the same tensor if it is on the CPU
  zero_pruned(there.mutable_data_ptr(), bits.data(), there.numel(),
              static_cast<int>(there.element_size()));
  if (!whole_E.is_cpu()) whole_E.copy_(there);
}

/// Zeroes the gaps between parts (other ranks' elements), and pruned elements of packed parts.
static void zero_foreign_and_pruned(const at::Tensor& whole_E, const std::vector<SlotPart>& parts) {
  int64_t done_E = 0;
  for (const SlotPart& part : parts) {
    whole_E.narrow(0, done_E, part.region.begin_E - done_E).zero_();
    if (part.is_packed()) part.kept.zero_pruned(part.of(whole_E));
    done_E = part.region.end_E;
  }
  whole_E.narrow(0, done_E, whole_E.numel() - done_E).zero_();
}

static void require_apart(const std::vector<SlotPart>& parts, int64_t num_elements) {
  int64_t done_E = 0;
  for (const SlotPart& part : parts) {
    check(part.region.begin_E >= done_E && part.region.num_elements() > 0,
          "regions of a buffer do not overlap");
    done_E = part.region.end_E;
  }
  check(done_E <= num_elements, "a region lies inside its buffer");
}

OptimizerState::OptimizerState(std::vector<FlatBuffer>& buffers, const ParamTable& params)
    : buffers_(buffers), params_(params) {
  own_all();
}

void OptimizerState::quantize() {
  is_quantized_ = true;
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
  blocks_.clear();
  if (!is_quantized_) return;
  const std::vector<int64_t> rows_E = row_elements(params_);
  for (const FlatBuffer& buffer : buffers_) blocks_.emplace_back(buffer, rows_E);
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
    std::ranges::sort(store.parts, {}, [](const SlotPart& part) { return part.region.begin_E; });
    require_apart(store.parts, buffers_[b].values_E.numel());
    if (!is_absent) to_parts(b);
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
  const bool packs_now = !is_quantized_ && packs(flat, bits);
  const bool was_packed = std::ranges::any_of(store.parts, &SlotPart::is_packed);
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
  to_parts(buffer);
  if (is_divided_) malloc_trim(0);  // as in set_shards()
}

void OptimizerState::rebuild(const std::vector<FlatBuffer>& buffers_before) {
  const at::NoGradGuard no_grad;
  std::vector<BufferStore> before = std::exchange(stores_, {});
  const std::vector<StateBlocks> blocks_before = std::exchange(blocks_, {});
  own_all();
  if (std::ranges::all_of(before, &BufferStore::is_absent)) return;
  for (size_t b = 0; b < before.size(); ++b) expand(buffers_before[b], blocks_before, &before[b]);
  for (size_t slot = 0; slot < names_.size(); ++slot) {
    std::vector<at::Tensor> by_param(params_.size());
    for (size_t b = 0; b < before.size(); ++b) {
      if (slot >= num_slots(buffers_before[b])) continue;
      // One slot at a time; the old one is freed before the next is copied.
      const at::Tensor whole_E = std::exchange(before[b].whole[slot], {});
      for (const FlatSlice& slice : buffers_before[b].slices)
        by_param[static_cast<size_t>(slice.param)] = view_of_slice(whole_E, slice, params_);
    }
    for (size_t b = 0; b < buffers_.size(); ++b) {
      if (slot >= num_slots(buffers_[b])) continue;
      at::Tensor whole_E = zeros_like_values(buffers_[b]);
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
  const auto blocks_of = [&](size_t b) { return is_quantized_ ? &blocks_[b] : nullptr; };
  std::vector<ParamShard> ascending = regions;
  std::ranges::sort(ascending, {}, &ParamShard::begin_E);
  for (size_t b = 0; b < stores_.size(); ++b) {
    if (buffers_[b].frozen) continue;
    for (const SlotPart& part : stores_[b].parts) {
      int64_t done_E = part.region.begin_E;
      for (const ParamShard& region : ascending) {
        if (region.buffer != b || !part.holds(region)) continue;
        add_cut(part, {b, done_E, region.begin_E}, blocks_of(b), &cut_.others);
        done_E = region.end_E;
      }
      add_cut(part, {b, done_E, part.region.end_E}, blocks_of(b), &cut_.others);
    }
  }
  for (const ParamShard& region : regions)
    for (const SlotPart& part : stores_.at(region.buffer).parts)
      if (part.holds(region)) add_cut(part, region, blocks_of(region.buffer), &cut_.regions);
  // Regions that cross a border of parts are in none of them.
  check(cut_.regions.size() == regions.size(), "a late region lies inside an owned one");
  cut_regions_ = regions;
  return cut_;
}

const std::vector<at::Tensor>& OptimizerState::expand(size_t buffer) {
  const at::NoGradGuard no_grad;
  drop_cut();
  return expand(buffers_.at(buffer), blocks_, &stores_[buffer]);
}

const std::vector<at::Tensor>& OptimizerState::expand(const FlatBuffer& buffer,
                                                      const std::vector<StateBlocks>& blocks,
                                                      BufferStore* store) const {
  if (!store->whole.empty()) return store->whole;
  for (size_t slot = 0; slot < num_slots(buffer); ++slot) {
    store->whole.push_back(store->is_in_parts ? joined(buffer, store->parts, blocks, slot)
                                              : zeros_like_values(buffer));
    if (!store->is_in_parts) continue;
    for (SlotPart& part : store->parts) part.slots[slot] = at::Tensor();
  }
  for (SlotPart& part : store->parts) part.scales.clear();
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

void OptimizerState::to_parts() {
  const bool were_whole =
      is_divided_ && std::ranges::any_of(stores_, [](const auto& one) {
        return !one.whole.empty() && !is_whole(one.parts, one.whole.front().numel());
      });
  for (size_t b = 0; b < stores_.size(); ++b) to_parts(b);
  if (were_whole) malloc_trim(0);  // as in set_shards()
}

void OptimizerState::to_parts(size_t buffer) {
  BufferStore& store = stores_[buffer];
  if (store.is_in_parts) return;
  const size_t num = num_slots(buffers_[buffer]);
  for (SlotPart& part : store.parts) part.slots.resize(num);
  for (size_t slot = 0; slot < num; ++slot) {
    for (SlotPart& part : store.parts)
      if (store.whole.empty())
        allocate(buffers_[buffer], slot, &part);
      else
        take_from(store.whole[slot], buffers_[buffer], slot, &part);
    // Freed before the next slot needs memory.
    if (!store.whole.empty()) store.whole[slot] = at::Tensor();
  }
  store.whole.clear();
  store.is_in_parts = true;
}

SlotPart OptimizerState::as_floats(const SlotPart& part) const {
  if (!part.is_quantized()) return part;
  SlotPart floats{.region = part.region};
  for (size_t slot = 0; slot < part.slots.size(); ++slot) {
    floats.slots.push_back(at::empty({part.region.num_elements()}, at::kFloat));
    dequantize(blocks(part.region.buffer), part.region, is_positive(slot),
               {part.slots[slot], part.scales[slot]}, floats.slots.back());
  }
  return floats;
}

void OptimizerState::put_back(const SlotPart& floats, const SlotPart& part) const {
  for (size_t slot = 0; slot < part.scales.size(); ++slot)
    lockstep::optim::quantize(blocks(part.region.buffer), part.region, is_positive(slot),
                              floats.slots[slot], {part.slots[slot], part.scales[slot]});
}

int64_t OptimizerState::num_bytes() const {
  size_t num_bytes = 0;
  for (const BufferStore& store : stores_) {
    for (const at::Tensor& whole_E : store.whole) num_bytes += whole_E.nbytes();
    if (!store.is_in_parts) continue;
    for (const SlotPart& part : store.parts)
      for (const auto* tensors : {&part.slots, &part.scales})
        for (const at::Tensor& one : *tensors) num_bytes += one.nbytes();
  }
  return static_cast<int64_t>(num_bytes);
}

}  // namespace lockstep::optim
