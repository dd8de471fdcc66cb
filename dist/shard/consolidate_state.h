#pragma once

#include "base/tensors/state_list.h"
#include "dist/communicator.h"

namespace lockstep::dist {

/// Consolidates sharded state: afterwards every rank has all elements. Required before sharded
/// state is saved or sharded in another way.
///
/// Before the call each element is, on each rank, either its value or +0 (all bits 0). The ranks
/// that have its value have the same one. Complete tensors stay as they are. Texts are ignored.
/// Method: the maximum of each byte over the ranks, so NaN and -0 keep their bits.
///
/// Collective: the same list on all ranks, tensors contiguous and on comm.device(). One all_reduce
/// per tensor, in place. On return the state is complete, on a device too.
void consolidate_state(Communicator& comm, const StateList& parts);

}  // namespace lockstep::dist
