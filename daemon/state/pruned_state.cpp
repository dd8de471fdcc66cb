#include "daemon/state/pruned_state.h"

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "base/tensors/params.h"

// The saver stores only kept elements of tensors with kept_bits. The bits must be saved under
// kept_key, from which a restore expands the tensor.
namespace lockstep::daemon {
namespace {

/// Returns the parameter A/B of the keys model/A/B, ema/A/B and optimizer/A/B/SLOT.
std::string param_of(std::string_view key) {
  if (key.starts_with("model/")) return std::string(key.substr(6));
  if (key.starts_with("ema/")) return std::string(key.substr(4));
  if (!key.starts_with("optimizer/")) return "";
  key.remove_prefix(10);
  return std::string(key.substr(0, key.rfind('/')));
}

}  // namespace

void say_what_is_pruned(const recal::MaskTable& masks, StateList* state) {
  std::set<std::string> saved;
  for (const StateEntry& entry : *state) saved.insert(entry.key);
  std::map<std::string, const recal::Mask*> by_param;
  // Without its mask in the checkpoint, a sparse tensor could not be restored.
  for (const recal::Mask& mask : masks.all())
    if (mask.num_pruned > 0 && saved.contains("_lockstep/masks/" + slashed(mask.name)))
      by_param[slashed(mask.name)] = &mask;
  for (StateEntry& entry : *state) {
    const auto mask = by_param.find(param_of(entry.key));
    if (mask == by_param.end() || entry.tensor.numel() != mask->second->weight.numel()) continue;
    if (!entry.tensor.is_floating_point()) continue;  // an update counter
    entry.kept_bits = mask->second->kept_bits;
    entry.kept_key = "_lockstep/masks/" + mask->first;
  }
}

}  // namespace lockstep::daemon
