#pragma once

#include <string>
#include <vector>

namespace lockstep::launch {

/// A machine that ranks may run on, by the name that the launcher reaches it with.
struct Host {
  std::string name;
  int slots = 1;  ///< ranks that it takes
};

/// "n1:4,n2:4" (one slot where no number stands), or "@FILE" of lines `n1 slots=4`, in which #
/// begins a comment. Throws Error: kUsage for what is no such list and for a host that stands in it
/// twice; what files::read() throws.
std::vector<Host> parse_hosts(const std::string& text);

/// The sum of their slots.
int num_slots(const std::vector<Host>& hosts);

/// As mpirun takes them: "n1:4,n2:4".
std::string host_list(const std::vector<Host>& hosts);

}  // namespace lockstep::launch
