#pragma once

#include <string_view>

#include "base/tensors/state_list.h"
#include "dist/communicator.h"

namespace lockstep::dist {

/// Throws Error(kDisagree).everywhere() unless all ranks have the same texts and, bit for bit, the
/// same tensors, like require_equal_replicas(). `what`: "the state at step 500". Sharded tensors
/// (StateEntry::held) are skipped, since each of their elements exists only once. Collective.
void require_equal_state(Communicator& comm, std::string_view what, const StateList& state);

}  // namespace lockstep::dist
