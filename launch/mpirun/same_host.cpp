#include "launch/mpirun/same_host.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include "base/error.h"

// Compares names by their addresses. A name that is unknown here is assumed to be a different host.
namespace lockstep::launch {
namespace {

constexpr const char* kHere = "this host";

/// Formats an address without the scope of a link: fe80::1%eth0 becomes fe80::1.
std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool is_v4 = address->sa_family == AF_INET;
  const void* bytes =
      is_v4 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
            : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return ::inet_ntop(address->sa_family, bytes, text.data(), text.size()) == nullptr ? ""
                                                                                     : text.data();
}

bool has_address(const sockaddr* address) {
  return address != nullptr && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
}

std::set<std::string> addresses_of_this_host() {
  std::set<std::string> all;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return all;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, ::freeifaddrs);
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next)
    if (has_address(each->ifa_addr)) all.insert(text_of(each->ifa_addr));
  return all;
}

/// True for loopback addresses. 127.0.1.1 is this host too, although no interface has it.
bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

/// Removes the brackets of an IPv6 address.
std::string bare(const std::string& name) {
  return name.starts_with('[') && name.ends_with(']') ? name.substr(1, name.size() - 2) : name;
}

}  // namespace

std::vector<std::string> addresses_of(const std::string& name) {
  const addrinfo hints{.ai_flags = 0, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* first = nullptr;
  // An unknown name has no addresses here; mpirun reports it.
  if (::getaddrinfo(bare(name).c_str(), nullptr, &hints, &first) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(first, ::freeaddrinfo);
  static const std::set<std::string> here = addresses_of_this_host();
  std::set<std::string> found;
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    if (!has_address(each->ai_addr)) continue;
    const std::string text = text_of(each->ai_addr);
    // All addresses of this host count as one, whichever interface they belong to.
    found.insert(is_loopback(text) || here.contains(text) ? kHere : text);
  }
  return {found.begin(), found.end()};
}

void require_different_hosts(
    const std::vector<Host>& hosts,
    const std::function<std::vector<std::string>(const std::string&)>& addresses) {
  std::map<std::string, const Host*> owners;  // by address
  for (const Host& host : hosts) {
    for (const std::string& address : addresses(host.name)) {
      const auto [owner, is_new] = owners.try_emplace(address, &host);
      if (is_new || owner->second == &host) continue;
      const Host& other = *owner->second;
      throw Error(
          ExitCode::kUsage, "hosts",
          fmt::format("'{}' and '{}' are names of one host ({}): name it once, with the "
                      "slots of both, as {}:{}",
                      other.name, host.name, address, other.name, other.slots + host.slots));
    }
  }
}

}  // namespace lockstep::launch
