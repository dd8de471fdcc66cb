#pragma once

#include "base/tensors/state_list.h"
#include "recal/masks/mask_table.h"

namespace lockstep::daemon {

/// Gives the weights of the list, and the moments that belong to them, the masks that prune them
/// (StateEntry::kept_bits). The masks' own entries are in the list.
void say_what_is_pruned(const recal::MaskTable& masks, StateList* state);

}  // namespace lockstep::daemon
