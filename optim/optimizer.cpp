#include "optim/optimizer.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "optim/flat_params.h"
#include "optim/kernels/update_region.h"

namespace lockstep::optim {

void Optimizer::set_shards(const std::vector<ParamShard>& regions) { slots_.set_shards(regions); }

void Optimizer::set_kept(size_t buffer, std::span<const uint8_t> bits) {
  slots_.set_kept(buffer, bits);
}

bool Optimizer::reads_kept_alone(size_t buffer) {
  const std::vector<SlotPart>& parts = slots_.parts(buffer);
  return is_elementwise() && takes_kernels(buffers_.at(buffer)) &&
         std::all_of(parts.begin(), parts.end(),
                     [](const SlotPart& part) { return part.is_packed(); });
}

void Optimizer::rebuild(const std::vector<FlatBuffer>& buffers_before) {
  slots_.rebuild(buffers_before);
}

void Optimizer::step(const StepRates& rates, const LateShards& late, const at::Tensor& found_inf) {
  check(!found_inf.defined() || (takes_found_inf() && late.regions.empty()),
        "a rule that looks at a number of the device, and nothing late");
  const at::NoGradGuard no_grad;
  slots_.take_back();
  ++num_updates_;
  found_inf_ = found_inf;
  const auto update_part = [&](SlotPart& part) {
    const FlatBuffer& buffer = buffers_[part.region.buffer];
    update(buffer, &part, rates[static_cast<size_t>(buffer.group)]);
  };
  if (late.regions.empty()) {
    for (size_t b = 0; b < buffers_.size(); ++b)
      if (!buffers_[b].frozen)
        for (SlotPart& part : slots_.parts(b)) update_part(part);
  } else {
    CutParts& cut = slots_.cut_at(late.regions);
    for (SlotPart& part : cut.others) update_part(part);
    for (SlotPart& part : cut.regions) {
      late.wait_for_next();
      update_part(part);
    }
  }
  end_step(rates);
}

void Optimizer::sum_over_ranks(const at::Tensor& numbers) const {
  check(sum_over_ranks_ != nullptr, "a divided optimizer of whole parameters can sum over ranks");
  sum_over_ranks_(numbers);
}

void Optimizer::list_slots(size_t buffer, StateList* list) {
  const std::vector<at::Tensor>& whole = slots_.expand_clean(buffer);
  for (size_t slot = 0; slot < whole.size(); ++slot)
    for (const FlatSlice& slice : buffers_[buffer].slices) {
      StateEntry entry{.key = fmt::format("optimizer/{}/{}",
                                          slashed(params_[static_cast<size_t>(slice.param)].name),
                                          slots_.names()[slot]),
                       .tensor = view_of_slice(whole[slot], slice, params_)};
      if (slots_.is_divided(buffer)) entry.held = slots_.owned_of(buffer, slice);
      entry.steady = true;
      list->push_back(std::move(entry));
    }
}

StateList Optimizer::state() {
  StateList list{{"optimizer/iterations", view_of(&num_updates_), nullptr}};
  for (size_t b = 0; b < buffers_.size(); ++b) list_slots(b, &list);
  return list;
}

StateList Optimizer::sharded_state() {
  StateList list;
  for (size_t b = 0; b < buffers_.size(); ++b)
    if (slots_.is_divided(b)) list_slots(b, &list);
  return list;
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

}  // namespace lockstep::optim
