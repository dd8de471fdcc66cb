#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launch/mpirun/hosts.h"

namespace lockstep::launch {

/// Addresses that a host's name leads to, as text; none for a name that is not known here. Those of
/// this host, whichever of its interfaces they are of, are all "this host".
std::vector<std::string> addresses_of(const std::string& name);

/// Throws Error(kUsage) where two names lead to one host, as an alias and an address do: mpirun
/// would take it for two, whose loss is one. `addresses` is asked once a name.
void require_different_hosts(
    const std::vector<Host>& hosts,
    const std::function<std::vector<std::string>(const std::string&)>& addresses = addresses_of);

}  // namespace lockstep::launch
