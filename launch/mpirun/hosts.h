#pragma once

#include <string>
#include <vector>

namespace lockstep::launch {

/// Machine that ranks may run on, with the name by which the launcher reaches it.
struct Host {
  std::string name;
  int slots = 1;  ///< ranks that it can run
};

/// Parses "n1:4,n2:4" (one slot if no number is given), or "@FILE" with lines `n1 slots=4`, in
/// which # begins a comment. Throws Error(kUsage) for another text and for a duplicate host. Throws
/// what files::read() throws.
std::vector<Host> parse_hosts(const std::string& text);

/// Returns the sum of the hosts' slots.
int num_slots(const std::vector<Host>& hosts);

/// Formats the hosts for mpirun: "n1:4,n2:4".
std::string host_list(const std::vector<Host>& hosts);

}  // namespace lockstep::launch
