#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::metrics {

/// Where a server listens: "127.0.0.1:9464", "[::1]:9464", "node7:9464", ":9464" (every IPv4
/// interface), port 0 for any free port.
struct ListenAddress {
  std::string host;  ///< without brackets
  uint16_t port = 0;

  /// As it was written, an IPv6 host in brackets.
  std::string text() const;
};

/// Whether it is a loopback address, or localhost.
bool is_loopback(const std::string& host);

/// Whether other hosts can reach this host's address: false for loopback addresses, and for names,
/// whose address is known only where they are looked up.
bool is_reachable_by_others(const std::string& host);

/// Nothing if the text is not of that form. The host is not looked up.
std::optional<ListenAddress> parse_listen_address(std::string_view text);

/// The address of the local_rank-th process on a host: `local_rank` ports further (any free port
/// beyond 65535; port 0 stays 0).
ListenAddress address_of_local_rank(const ListenAddress& first, int local_rank);

/// What others on the network should call: `node` in the place of a host that means "every
/// interface".
std::string reachable_address(const ListenAddress& bound, const std::string& node);

}  // namespace lockstep::metrics
