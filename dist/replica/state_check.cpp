#include "dist/replica/state_check.h"

#include <fmt/format.h>

#include "dist/agree.h"
#include "dist/replica/replica_check.h"

namespace lockstep::dist {

void require_equal_state(Communicator& comm, std::string_view what, const StateList& state) {
  if (comm.world_size() == 1) return;
  std::vector<NamedTensor> tensors;
  std::string texts;
  for (const StateEntry& entry : state) {
    if (entry.tensor.defined() && !entry.held)
      tensors.push_back({entry.key, entry.tensor.detach()});
    if (entry.text != nullptr) texts += fmt::format("{}: {}\n", entry.key, *entry.text);
  }
  // Texts first: they are small, and settings explain differences of tensors.
  require_equal(comm, what, texts);
  require_equal_replicas(comm, what, tensors);
}

}  // namespace lockstep::dist
