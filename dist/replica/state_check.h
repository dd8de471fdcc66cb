#pragma once

#include <string_view>

#include "base/tensors/state_list.h"
#include "dist/communicator.h"

namespace lockstep::dist {

/// Throws Error(kDisagree).everywhere() unless all ranks hold the same texts and, bit for bit, the
/// same tensors, as require_equal_replicas() does; `what`: "the state at step 500". Of tensors that
/// are divided over the ranks (StateEntry::held) each element exists once: nothing is compared.
/// Collective.
void require_equal_state(Communicator& comm, std::string_view what, const StateList& state);

}  // namespace lockstep::dist
