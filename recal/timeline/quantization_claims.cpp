#include "recal/timeline/quantization_claims.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

namespace lockstep::recal {
namespace {

std::string kept_no_longer(const QuantizationClaim& claim, const std::string& layer,
                           const PruningClaim& pruned) {
  return fmt::format(
      "{} quantizes '{}' from step {} on, but {} ({}) lets go of its mask at step {}, and zeros "
      "would come back: keep them with a ConstantKSModifier listed behind it, or with "
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

}  // namespace

bool QuantizationClaims::refuse_second(const QuantizationClaim& claim, Diagnostics* faults) const {
  for (const QuantizationClaim& other : claims_) {
    std::vector<int64_t> both;
    std::set_intersection(claim.layers.begin(), claim.layers.end(), other.layers.begin(),
                          other.layers.end(), std::back_inserter(both));
    const std::string key = differing_key(claim, other);
    if (both.empty() && key.empty()) continue;
    const std::string names = fmt::format("{} and {} ({})", claim.modifier->tag(),
                                          other.modifier->tag(), other.modifier->location().text());
    faults->add(claim.modifier->location().fault(
        both.empty()
            ? fmt::format("{} must have the same {}: it holds for the whole model", names, key)
            : fmt::format("{} both quantize '{}'", names,
                          layers_[static_cast<size_t>(both.front())].name)));
    return true;
  }
  return false;
}

void QuantizationClaims::add(QuantizationClaim claim, Diagnostics* faults) {
  // A refused claim is kept: later ones are compared with it as well.
  refuse_second(claim, faults);
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
                                       "step {}: pruning first and quantizing then is usual",
                                       layer.name, claim.first_step, pruned->pruning->end)});
    }
  }
  return warnings;
}

}  // namespace lockstep::recal
