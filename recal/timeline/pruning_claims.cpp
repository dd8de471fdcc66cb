#include "recal/timeline/pruning_claims.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::recal {
namespace {

Fault two_pruners(const Modifier& second, const Modifier& first, const std::string& name,
                  std::string_view hint) {
  return second.location().fault(fmt::format("{} and {} ({}) both prune '{}'{}", second.tag(),
                                             first.tag(), first.location().text(), name, hint));
}

}  // namespace

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
                                const GradualClaim& claim, Diagnostics* faults) {
  if (const Entry* other = overlapping(param, claim.steps); other != nullptr) {
    const std::string hint =
        other->is_gradual
            ? fmt::format(" at step {}: let one end where the other starts",
                          std::max(claim.steps.first, other->steps.first))
            : fmt::format("; list the {} behind it to keep what it leaves", other->pruner->tag());
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
                                                              const GradualClaim& claim) const {
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

}  // namespace lockstep::recal
