#pragma once

#include "base/tensors/state_list.h"
#include "dist/communicator.h"

namespace lockstep::dist {

/// Makes state whole that is divided among ranks, before it is saved or divided otherwise: on each
/// rank an element of a tensor has its value or is +0 (all bits 0), and it has the same value
/// wherever it has one; afterwards it has it on every rank. So tensors that are whole already
/// (counts, state that no rank divides) may be in the list and stay as they are. Texts are left
/// alone.
///
/// The largest of each byte over the ranks is taken: a value keeps its bits, a NaN or -0 too.
///
/// Collective: the same list on all ranks, tensors contiguous and on comm.device(). One all_reduce
/// a tensor, in place. When it returns, the state is whole on a device too.
void consolidate_state(Communicator& comm, const StateList& parts);

}  // namespace lockstep::dist
