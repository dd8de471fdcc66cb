// Update and clipping of gradients.
#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "optim/flat_params.h"
#include "optim/update_region.h"

namespace lockstep::optim {

// Optimizer is the common part of all rules: which regions to update, in which order, and the
// counts of updates. OptimizerState stores the slots; update() of a subclass applies the rule to
// one region.

void Optimizer::set_shards(const std::vector<ParamShard>& regions) { slots_.set_shards(regions); }

void Optimizer::set_kept(size_t buffer, std::span<const uint8_t> bits) {
  slots_.set_kept(buffer, bits);
}

bool Optimizer::reads_kept_alone(size_t buffer) {
  const std::vector<SlotPart>& parts = slots_.parts(buffer);
  return takes_kernels(buffers_.at(buffer)) &&
         std::all_of(parts.begin(), parts.end(),
                     [](const SlotPart& part) { return part.is_packed(); });
}

void Optimizer::rebuild(const std::vector<FlatBuffer>& buffers_before) {
  slots_.rebuild(buffers_before);
}

/// True if updates are counted by parameter: PyTorch does so, and in TensorFlow's RMSProp the
/// initial value belongs to a variable. TensorFlow's Adam has one count for all.
bool Optimizer::counts_own_updates() const {
  return options_.type == "adamw" || options_.type == "rmsprop";
}

bool Optimizer::is_left_out(int64_t param) const {
  return std::binary_search(left_out_.begin(), left_out_.end(), param);
}

int64_t Optimizer::updates_of(int64_t param) const {
  return counts_own_updates() ? own_updates_[static_cast<size_t>(param)] : num_updates_;
}

void Optimizer::count_updates() {
  ++num_updates_;
  counted_.clear();
  if (!counts_own_updates()) return;
  for (const FlatBuffer& buffer : buffers_)
    for (const FlatSlice& slice : buffer.slices) {
      if (buffer.frozen || is_left_out(slice.param)) continue;
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
  if (left_out_.empty() && !counts_own_updates()) return apart;
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
        const int64_t num_updates = is_left_out(slice.param) ? 0 : updates_of(slice.param);
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
  update(buffer, &part, rates[static_cast<size_t>(buffer.group)]);
}

void Optimizer::update_all_but(const std::vector<Apart>& apart, const StepRates& rates) {
  std::vector<ParamShard> regions;
  for (const Apart& one : apart) regions.push_back(one.region);
  CutParts& cut = slots_.cut_at(regions);
  for (SlotPart& part : cut.others) update_part(part, rates);
  for (size_t i = 0; i < apart.size(); ++i) {
    updates_of_part_ = apart[i].num_updates;
    // 0: left out.
    if (updates_of_part_ > 0) update_part(cut.regions[i], rates);
  }
}

/// Updates late shards after all others, each when its gradients have arrived.
void Optimizer::update_in_turn(const LateShards& late, const StepRates& rates) {
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

void Optimizer::step(const StepRates& rates, const LateShards& late, const at::Tensor& found_inf) {
  check(!found_inf.defined() || (takes_found_inf() && late.regions.empty()),
        "a rule that looks at a number of the device, and nothing late");
  const at::NoGradGuard no_grad;
  slots_.take_back();
  count_updates();
  found_inf_ = found_inf;
  updates_of_part_ = usual_updates();
  const std::vector<Apart> apart = regions_apart();
  if (apart.empty()) {
    update_in_turn(late, rates);
  } else {
    // Apart regions and late ones may overlap, so wait for all late ones first.
    for (size_t i = 0; i < late.regions.size(); ++i) late.wait_for_next();
    update_all_but(apart, rates);
  }
  end_step();
  left_out_.clear();
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
  for (size_t i = 0; i < params_.size() && counts_own_updates(); ++i)
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

namespace {

at::Tensor gradients_of(const std::vector<FlatBuffer>& buffers, const ParamShard& region) {
  return buffers[region.buffer].grads_E.narrow(0, region.begin_E, region.num_elements());
}

/// Returns the norm before clipping.
double clip_by_norm(double limit, std::vector<FlatBuffer>& buffers,
                    const std::vector<ParamShard>& regions,
                    std::optional<double> squared_grad_norm) {
  check(squared_grad_norm.has_value(), "clipping by norm needs the sum of squares");
  const double norm = std::sqrt(*squared_grad_norm);
  // Every rank scales its own regions by the same factor, since the norm is equal on all ranks.
  if (norm > limit)
    for (const ParamShard& region : regions) gradients_of(buffers, region).mul_(limit / norm);
  return norm;
}

}  // namespace

std::optional<double> clip_gradients(const ClipOptions& options, std::vector<FlatBuffer>& buffers,
                                     const std::vector<ParamShard>& regions,
                                     std::optional<double> squared_grad_norm) {
  std::optional<double> norm;
  if (options.norm) norm = clip_by_norm(*options.norm, buffers, regions, squared_grad_norm);
  if (options.value)
    for (const ParamShard& region : regions)
      gradients_of(buffers, region).clamp_(-*options.value, *options.value);
  return norm;
}

}  // namespace lockstep::optim
