#pragma once

#include "base/tensors/state_list.h"
#include "dist/communicator.h"

namespace lockstep::dist {

/// Consolidation of sharded state: afterwards every rank has all elements. Needed before sharded
/// state is saved, or sharded otherwise.
///
/// Before the call an element is either its value or +0 (all bits 0) on each rank, and the ranks
/// that have its value have the same one. Tensors that are already whole stay as they are. Texts
/// are left alone. Method: the largest of each byte over the ranks, so NaN and -0 keep their bits.
///
/// Collective: the same list on all ranks, tensors contiguous and on comm.device(). One all_reduce
/// a tensor, in place. When it returns, the state is whole on a device too.
void consolidate_state(Communicator& comm, const StateList& parts);

}  // namespace lockstep::dist
