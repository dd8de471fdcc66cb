#pragma once

#include "base/tensors/state_list.h"
#include "recal/masks/mask_table.h"

namespace lockstep::daemon {

/// Sets StateEntry::kept_bits of each pruned weight in the list, and of its optimizer moments, to
/// its mask. The list must contain the entries of the masks.
void say_what_is_pruned(const recal::MaskTable& masks, StateList* state);

}  // namespace lockstep::daemon
