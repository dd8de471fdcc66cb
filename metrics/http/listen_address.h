#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::metrics {

/// Address that a server listens on: "127.0.0.1:9464", "[::1]:9464", "node7:9464", ":9464" (every
/// IPv4 interface). Port 0 means any free port.
struct ListenAddress {
  std::string host;  ///< without brackets
  uint16_t port = 0;

  /// Returns the address as it was written, an IPv6 host in brackets.
  std::string text() const;
};

/// True for a loopback address or localhost.
bool is_loopback(const std::string& host);

/// True if other hosts can reach this host's address. False for loopback addresses and for names,
/// whose address is known only after the look-up.
bool is_reachable_by_others(const std::string& host);

/// Parses an address. Returns nullopt if the text does not have that form. The host is not looked
/// up.
std::optional<ListenAddress> parse_listen_address(std::string_view text);

/// Returns the address of the local_rank-th process on a host: `local_rank` ports further. Beyond
/// 65535 it is any free port; port 0 stays 0.
ListenAddress address_of_local_rank(const ListenAddress& first, int local_rank);

/// Returns the address for others on the network: `node` replaces a host that means "every
/// interface".
std::string reachable_address(const ListenAddress& bound, const std::string& node);

}  // namespace lockstep::metrics
