#include "dist/shard/consolidate_state.h"

#include "base/error.h"

namespace lockstep::dist {

void consolidate_state(Communicator& comm, const StateList& parts) {
  if (comm.world_size() == 1) return;
  for (const StateEntry& part : parts) {
    if (!part.tensor.defined()) continue;
    check(part.tensor.is_contiguous(), "state that is completed is contiguous: " + part.key);
    const at::Tensor bytes_B = part.tensor.detach().view(-1).view(at::kByte);
    // All but the owner have +0, so the bytewise maximum is the owner's value.
    comm.all_reduce(bytes_B, ReduceOp::kMax)->wait();
  }
  comm.settle();
}

}  // namespace lockstep::dist
