#include "recal/timeline/trainable_claims.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace lockstep::recal {
namespace {

std::vector<int64_t> shared(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

std::string_view word(bool trainable) { return trainable ? "trainable" : "frozen"; }

}  // namespace

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

void TrainableClaims::require_some(const TrainableChange& change, Diagnostics* faults) const {
  for (int64_t param = 0; param < static_cast<int64_t>(names_.size()); ++param)
    if (is_trainable(param, change.step)) return;
  faults->add(change.modifier->location().fault(
      fmt::format("at step {} nothing is left to train: {} freezes the last parameters",
                  change.step, change.modifier->tag())));
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
    if (change.trainable) continue;
    const size_t before = faults->list().size();
    require_some(change, faults);
    if (faults->list().size() > before) break;  // one fault is enough
  }
  return changes;
}

}  // namespace lockstep::recal
