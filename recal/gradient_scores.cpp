#include "recal/gradient_scores.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "recal/masks/mask_update.h"

// Collection of gradients, and the scores and changes that follow from them.
namespace lockstep::recal {
namespace {

/// float32 copy on the CPU, row-major, flat.
at::Tensor flat_on_cpu(const at::Tensor& values) {
  return values.detach().to(at::kCPU, at::kFloat).contiguous().flatten();
}

/// Maps signed scores to float64 numbers >= 0 of the same order, by the order of their bits.
at::Tensor ordered_keys(const at::Tensor& scores) {
  constexpr int64_t kSignBit = int64_t{1} << 31;
  const at::Tensor bits = scores.view(at::kInt).to(at::kLong);
  return at::where(bits.ge(0), bits + kSignBit, -1 - bits).to(at::kDouble);
}

/// Steps whose gradients count for updates at these steps, which ascend.
std::vector<StepRange> windows_before(const std::vector<int64_t>& updates, const ScoreRule& rule) {
  if (rule.kind == PruneScore::kMovement) return {{0, updates.back()}};
  std::vector<StepRange> windows;
  int64_t before = 0;
  for (const int64_t update : updates) {
    windows.push_back({std::max(before, update - rule.fisher.num_grads), update});
    before = update;
  }
  return windows;
}

}  // namespace

bool GradientScores::Entry::collects_at(int64_t step) const {
  const auto next =
      std::upper_bound(windows.begin(), windows.end(), step,
                       [](int64_t s, const StepRange& range) { return s < range.end; });
  return next != windows.end() && next->first <= step;
}

GradientScores::GradientScores(const ParamTable& params, const Timeline& timeline, int rank,
                               int world_size)
    : rank_(rank) {
  std::map<int, std::set<int64_t>> updates;  // by parameter set
  for (const Action& action : timeline.actions())
    if (action.kind == ActionKind::kPrune) updates[action.param_set].insert(action.step);
  std::map<int64_t, int> num_of_param;
  std::vector<int64_t> sizes;
  for (const auto& [index, steps] : updates) {
    const ParamSet& set = timeline.param_sets()[static_cast<size_t>(index)];
    if (set.score.kind == PruneScore::kMagnitude) continue;
    for (const int64_t param : set.params) {
      const Param& own = params[static_cast<size_t>(param)];
      Entry& entry = entries_.emplace_back();
      entry.param = param;
      entry.param_set = index;
      // A parameter may be pruned by several modifiers in turn, each with statistics of its own.
      entry.name = fmt::format("{}/{}", slashed(own.name), num_of_param[param]++);
      entry.group = set.mask_rule.kind.pattern == MaskPattern::kBlock ? set.mask_rule.kind.m : 1;
      entry.weight = own.tensor;
      entry.windows = windows_before({steps.begin(), steps.end()}, set.score);
      if (set.score.kind == PruneScore::kFisher)
        entry.fisher.emplace(own.tensor.numel(), set.score.fisher);
      else
        entry.movement = at::zeros({own.tensor.numel()});
      sizes.push_back(own.tensor.numel());
    }
  }
  const std::vector<int> owners = share_out(sizes, world_size);
  for (size_t i = 0; i < entries_.size(); ++i) entries_[i].owner = owners[i];
}

void GradientScores::begin_step(int64_t step) {
  // The gradient belongs to the weights before the update.
  for (Entry& entry : entries_)
    if (!entry.fisher && entry.collects_at(step)) {
      if (!entry.weight_before.defined()) entry.weight_before = at::empty_like(entry.movement);
      entry.weight_before.copy_(entry.weight.detach().flatten());
    }
}

void GradientScores::end_step(int64_t step, const MaskTable& masks) {
  const at::NoGradGuard no_grad;
  for (Entry& entry : entries_) {
    const at::Tensor& gradient = entry.weight.grad();
    if (!gradient.defined() || !entry.collects_at(step)) continue;
    if (entry.fisher && entry.owner != rank_) {
      ++*entry.fisher->num_added();
      continue;
    }
    at::Tensor copy = gradient.detach()
                          .to(at::kCPU, at::kFloat, /*non_blocking=*/false,
                              /*copy=*/true)
                          .contiguous();
    // Gradients of pruned weights may be undefined.
    masks.zero_pruned(entry.param, copy);
    if (entry.fisher) {
      entry.fisher->add(copy.flatten());
    } else {
      entry.movement.addcmul_(entry.weight_before, copy.flatten(), -1);
      ++entry.num_moves;
    }
  }
}

std::vector<const GradientScores::Entry*> GradientScores::entries_of(int param_set) const {
  std::vector<const Entry*> found;
  for (const Entry& entry : entries_)
    if (entry.param_set == param_set) found.push_back(&entry);
  return found;
}

template <typename Compute>
at::Tensor GradientScores::from_owner(const Entry& entry, dist::Communicator& control,
                                      const Compute& compute) const {
  at::Tensor values = entry.owner == rank_ ? compute() : at::empty({entry.weight.numel()});
  if (control.world_size() == 1) return values;
  values = values.to(control.device());
  control.broadcast(values, entry.owner);
  return values.cpu();
}

std::vector<at::Tensor> GradientScores::scores(int param_set, bool is_global,
                                               dist::Communicator& control) const {
  const std::vector<const Entry*> entries = entries_of(param_set);
  std::vector<std::string_view> missing;
  for (const Entry* entry : entries)
    if (entry->num_gradients() == 0)
      missing.push_back(std::string_view(entry->name).substr(0, entry->name.rfind('/')));
  const bool is_by_magnitude = missing.size() == entries.size() || (is_global && !missing.empty());
  if (!missing.empty() && control.rank() == 0)
    log::warning("recipe", fmt::format("no gradients for {} before this update: {} pruned by "
                                       "magnitude this time",
                                       fmt::join(missing, ", "),
                                       is_by_magnitude ? "all of the modifier's weights are"
                                                       : "only these are"));
  if (is_by_magnitude) return {};
  std::vector<at::Tensor> all;
  for (const Entry* entry : entries) {
    if (entry->num_gradients() == 0) {
      all.push_back(flat_on_cpu(entry->weight).abs().view(entry->weight.sizes()));
      continue;
    }
    const auto compute = [&] {
      return entry->fisher->scores(flat_on_cpu(entry->weight), entry->group);
    };
    const at::Tensor own =
        entry->fisher ? from_owner(*entry, control, compute) : ordered_keys(entry->movement);
    all.push_back(own.view(entry->weight.sizes()));
  }
  return all;
}

std::vector<at::Tensor> GradientScores::changes(int param_set,
                                                const std::vector<at::Tensor>& kept_before,
                                                const MaskTable& masks,
                                                dist::Communicator& control) const {
  std::vector<at::Tensor> all;
  for (const Entry* entry : entries_of(param_set)) {
    if (!entry->fisher) return {};
    if (entry->num_gradients() == 0) {
      all.push_back(at::zeros(entry->weight.sizes()));
      continue;
    }
    const at::Tensor lost =
        kept_before[all.size()].bitwise_and(masks.of(entry->param).kept_bits.bitwise_not());
    const auto compute = [&] {
      return entry->fisher->update(flat_on_cpu(entry->weight),
                                   kept_flags(lost, {entry->weight.numel()}).to(at::kBool),
                                   entry->group);
    };
    all.push_back(from_owner(*entry, control, compute).view(entry->weight.sizes()));
  }
  return all;
}

void GradientScores::reset(int param_set) {
  for (Entry& entry : entries_)
    if (entry.fisher && entry.param_set == param_set) entry.fisher->reset();
}

StateList GradientScores::state(bool all) const {
  StateList list;
  const auto add = [&](const Entry& entry, const char* what, const at::Tensor& tensor) {
    list.push_back({.key = fmt::format("_lockstep/pruning/{}/{}", entry.name, what),
                    .tensor = tensor,
                    .value_if_missing = 0.0,
                    .steady = true});
  };
  for (const Entry& entry : entries_) {
    auto& own = const_cast<Entry&>(entry);
    if (!all && entry.num_gradients() == 0) continue;
    if (!entry.fisher) {
      add(entry, "movement", entry.movement);
      add(entry, "num_steps", view_of(&own.num_moves));
      continue;
    }
    const at::Tensor statistics = entry.fisher->statistics();
    add(entry, "fisher", statistics);
    list.back().held.emplace();
    if (entry.owner == rank_) list.back().held->push_back({0, statistics.numel()});
    add(entry, "num_gradients", view_of(own.fisher->num_added()));
  }
  return list;
}

}  // namespace lockstep::recal
