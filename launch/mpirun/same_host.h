#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launch/mpirun/hosts.h"

namespace lockstep::launch {

/// Returns the addresses of a host name as text; none for an unknown name. Any address of this
/// host's interfaces becomes "this host".
std::vector<std::string> addresses_of(const std::string& name);

/// Throws Error(kUsage) if two names lead to one host, such as an alias and an address. mpirun
/// would count that host twice, and losing it would look like losing two. `addresses` is called
/// once per name.
void require_different_hosts(
    const std::vector<Host>& hosts,
    const std::function<std::vector<std::string>(const std::string&)>& addresses = addresses_of);

}  // namespace lockstep::launch
