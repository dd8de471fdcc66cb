#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "recal/schedule/timeline_builder.h"

// Checks for conflicts between modifiers: groups, pruning, quantization, trainability.
namespace lockstep::recal {
namespace {

Fault two_pruners(const Modifier& second, const Modifier& first, const std::string& name,
                  std::string_view hint) {
  return second.location().fault(fmt::format("{} and {} ({}) both prune '{}'{}", second.tag(),
                                             first.tag(), first.location().text(), name, hint));
}

std::string kept_no_longer(const QuantizationClaim& claim, const std::string& layer,
                           const PruningClaim& pruned) {
  return fmt::format(
      "{} quantizes '{}' from step {} on, but {} ({}) releases its mask at step {}, and zeros "
      "would come back: keep them with a ConstantKSModifier listed after it, or with "
      "leave_enabled: true",
      claim.modifier->tag(), layer, claim.first_step, pruned.pruner->tag(),
      pruned.pruner->location().text(), *pruned.released);
}

/// Returns the key of a model-wide setting in which two claims differ, or "".
std::string differing_key(const QuantizationClaim& a, const QuantizationClaim& b) {
  if (a.per_channel != b.per_channel) return "weights";
  if (a.observers_off != b.observers_off) return "disable_quantization_observer";
  if (a.batch_norm_frozen != b.batch_norm_frozen) return "freeze_bn_stats";
  return "";
}

std::vector<int64_t> shared(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

std::string_view word(bool trainable) { return trainable ? "trainable" : "frozen"; }

}  // namespace

void GroupClaims::add(const Modifier& writer, const ParamGroups& groups, StepRange steps,
                      Diagnostics* faults) {
  const std::vector<int> numbers = groups.all() ? std::vector<int>{kAllGroups} : groups.numbers;
  for (const int group : numbers) {
    bool is_free = true;
    for (const Claim& claim : claims_) {
      const bool meets = group == kAllGroups || claim.group == kAllGroups || group == claim.group;
      const int64_t clash = std::max(steps.first, claim.steps.first);
      if (!meets || clash >= std::min(steps.end, claim.steps.end)) continue;
      // A modifier claims each of its groups separately.
      if (claim.writer == &writer) continue;
      faults->add(writer.location().fault(
          fmt::format("{} and {} ({}) both write {}{} at step {} (epoch {:.6g})", writer.tag(),
                      claim.writer->tag(), claim.writer->location().text(), quantity_,
                      of_group(group == kAllGroups ? claim.group : group), clash,
                      static_cast<double>(clash) / static_cast<double>(steps_per_epoch_))));
      is_free = false;
    }
    // Also after a conflict, so that later modifiers are compared with this one too.
    claims_.push_back({&writer, group, steps});
    if (!is_free) return;  // one fault is enough
  }
}

const PruningClaims::Entry* PruningClaims::overlapping(int64_t param, StepRange steps) const {
  const auto entries = claims_.find(param);
  if (entries == claims_.end()) return nullptr;
  for (const Entry& entry : entries->second)
    if (std::max(entry.steps.first, steps.first) < std::min(entry.steps.end, steps.end))
      return &entry;
  return nullptr;
}

bool PruningClaims::is_held(const std::vector<Entry>& entries, int64_t step) {
  return std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
    return entry.steps.first <= step && step < entry.steps.end;
  });
}

bool PruningClaims::add_gradual(const Modifier& pruner, int64_t param, const std::string& name,
                                const GradualPruning& claim, Diagnostics* faults) {
  if (const Entry* other = overlapping(param, claim.steps); other != nullptr) {
    const std::string hint =
        other->is_gradual
            ? fmt::format(" at step {}: let one end where the other starts",
                          std::max(claim.steps.first, other->steps.first))
            : fmt::format("; list the {} after it to keep its zeros", other->pruner->tag());
    faults->add(two_pruners(pruner, *other->pruner, name, hint));
    return false;
  }
  claims_[param].push_back(
      {.pruner = &pruner,
       .is_gradual = true,
       .steps = claim.steps,
       .final_sparsity = claim.final_sparsity,
       .released = claim.leave_enabled ? std::nullopt : std::optional(claim.steps.end)});
  return true;
}

std::optional<int64_t> PruningClaims::add_constant(const Modifier& pruner, int64_t param,
                                                   const std::string& name, int64_t first,
                                                   std::optional<int64_t> last,
                                                   Diagnostics* faults) {
  StepRange steps{first, last.value_or(INT64_MAX)};
  // Each round moves the start to the end of one gradual modifier, so the loop ends.
  while (const Entry* other = overlapping(param, steps)) {
    if (!other->is_gradual) {
      faults->add(two_pruners(pruner, *other->pruner, name, ""));
      return std::nullopt;
    }
    // Gradual modifiers have priority: this one starts after them.
    steps.first = other->steps.end;
    if (steps.first >= steps.end)
      return steps.first;  // it never acts: the gradual modifiers cover its whole window
  }
  claims_[param].push_back({.pruner = &pruner, .steps = steps, .released = last});
  return steps.first;
}

std::optional<PruningClaims::Fall> PruningClaims::fall_before(int64_t param,
                                                              const GradualPruning& claim) const {
  const auto entries = claims_.find(param);
  if (entries == claims_.end()) return std::nullopt;
  for (const Entry& entry : entries->second)
    // A released mask leaves no sparsity to the next modifier.
    if (entry.is_gradual && !entry.released && entry.steps.end <= claim.steps.first &&
        entry.final_sparsity > claim.init_sparsity)
      return Fall{entry.pruner, entry.final_sparsity};
  return std::nullopt;
}

std::optional<PruningClaim> PruningClaims::find(int64_t param) const {
  const auto entries = claims_.find(param);
  if (entries == claims_.end()) return std::nullopt;
  PruningClaim claim;
  int64_t latest_start = -1;
  for (const Entry& entry : entries->second) {
    if (entry.is_gradual) {
      // The union of all gradual modifiers of this parameter.
      if (!claim.pruning) claim.pruning = entry.steps;
      claim.pruning->first = std::min(claim.pruning->first, entry.steps.first);
      claim.pruning->end = std::max(claim.pruning->end, entry.steps.end);
    }
    // Without a release, the modifier that starts last is named in messages.
    if (!claim.released && entry.steps.first > latest_start) {
      latest_start = entry.steps.first;
      claim.pruner = entry.pruner;
    }
    // A release has no effect if another modifier keeps the mask at that step.
    const bool lets_go = entry.released && !is_held(entries->second, *entry.released);
    if (!lets_go || (claim.released && *claim.released <= *entry.released)) continue;
    claim.released = entry.released;
    claim.pruner = entry.pruner;
  }
  return claim;
}

void QuantizationClaims::add(QuantizationClaim claim, Diagnostics* faults) {
  for (const QuantizationClaim& other : claims_) {
    const std::vector<int64_t> both = shared(claim.layers, other.layers);
    const std::string key = differing_key(claim, other);
    if (both.empty() && key.empty()) continue;
    const std::string names = fmt::format("{} and {} ({})", claim.modifier->tag(),
                                          other.modifier->tag(), other.modifier->location().text());
    faults->add(claim.modifier->location().fault(
        both.empty()
            ? fmt::format("{} must have the same {}: it applies to the whole model", names, key)
            : fmt::format("{} both quantize '{}'", names,
                          layers_[static_cast<size_t>(both.front())].name)));
    break;
  }
  // A refused claim is kept: later ones are compared with it as well.
  claims_.push_back(std::move(claim));
}

std::vector<QuantizationClaims::Warning> QuantizationClaims::check_pruning(
    const PruningClaims& pruning, std::optional<int64_t> total_steps, Diagnostics* faults) const {
  std::vector<Warning> warnings;
  for (const QuantizationClaim& claim : claims_) {
    bool has_warned = false;
    for (const int64_t index : claim.layers) {
      const LayerInfo& layer = layers_[static_cast<size_t>(index)];
      const std::optional<PruningClaim> pruned = pruning.find(layer.weight_param);
      if (!pruned) continue;
      // Zeros would grow back, and the quantized layer would not stay sparse: a fault.
      if (pruned->released && (!total_steps || *pruned->released < *total_steps)) {
        faults->add(claim.modifier->location().fault(kept_no_longer(claim, layer.name, *pruned)));
        break;  // one fault is enough for all its layers
      }
      const bool still_prunes = pruned->pruning && claim.first_step < pruned->pruning->end;
      // One warning per modifier is enough.
      if (!still_prunes || std::exchange(has_warned, true)) continue;
      warnings.push_back(
          {claim.modifier, fmt::format("quantizes '{}' from step {} on, while it is pruned until "
                                       "step {}: usually pruning comes before quantization",
                                       layer.name, claim.first_step, pruned->pruning->end)});
    }
  }
  return warnings;
}

void TrainableClaims::add(const Modifier& modifier, const std::vector<int64_t>& params,
                          StepRange steps, bool trainable, Diagnostics* faults) {
  for (const Claim& claim : claims_) {
    const int64_t clash = std::max(steps.first, claim.steps.first);
    if (claim.trainable == trainable || clash >= std::min(steps.end, claim.steps.end)) continue;
    const std::vector<int64_t> both = shared(params, claim.params);
    if (both.empty()) continue;
    faults->add(modifier.location().fault(fmt::format(
        "{} makes '{}' {} at step {}, {} ({}) makes it {}", modifier.tag(),
        names_[static_cast<size_t>(both.front())], word(trainable), clash, claim.modifier->tag(),
        claim.modifier->location().text(), word(claim.trainable))));
  }
  claims_.push_back({&modifier, params, steps, trainable});
}

bool TrainableClaims::is_trainable(int64_t param, int64_t step) const {
  for (const Claim& claim : claims_)
    if (step >= claim.steps.first && step < claim.steps.end &&
        std::binary_search(claim.params.begin(), claim.params.end(), param))
      // Claims that overlap agree, so the first one is as good as any.
      return claim.trainable;
  return !std::binary_search(frozen_at_start_.begin(), frozen_at_start_.end(), param);
}

void TrainableClaims::add_ends(std::vector<TrainableChange>* changes) const {
  for (const Claim& claim : claims_) {
    // Without an end there is nothing to restore.
    if (claim.steps.end == INT64_MAX) continue;
    std::vector<int64_t> reverting;
    for (const int64_t param : claim.params)
      // Only parameters that no other claim holds in this state return to their earlier state.
      if (is_trainable(param, claim.steps.end) != claim.trainable) reverting.push_back(param);
    if (!reverting.empty())
      changes->push_back({claim.steps.end, !claim.trainable, claim.modifier, std::move(reverting)});
  }
}

bool TrainableClaims::trains_some(int64_t step) const {
  for (int64_t param = 0; param < static_cast<int64_t>(names_.size()); ++param)
    if (is_trainable(param, step)) return true;
  return false;
}

std::vector<TrainableChange> TrainableClaims::changes(Diagnostics* faults) const {
  std::vector<TrainableChange> changes;
  // Ends come first, and the sort is stable: at a common step a start overrides an end.
  add_ends(&changes);
  for (const Claim& claim : claims_)
    if (!claim.params.empty())
      changes.push_back({claim.steps.first, claim.trainable, claim.modifier, claim.params});
  std::stable_sort(
      changes.begin(), changes.end(),
      [](const TrainableChange& a, const TrainableChange& b) { return a.step < b.step; });
  for (const TrainableChange& change : changes) {
    // Only freezing can leave nothing to train.
    if (change.trainable || trains_some(change.step)) continue;
    faults->add(change.modifier->location().fault(
        fmt::format("at step {} nothing is left to train: {} freezes the last parameters",
                    change.step, change.modifier->tag())));
    break;  // one fault is enough
  }
  return changes;
}

}  // namespace lockstep::recal
