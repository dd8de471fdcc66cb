#include "metrics/http/listen_address.h"

#include <charconv>

#include <boost/asio/ip/address.hpp>

namespace lockstep::metrics {
namespace {

std::optional<uint16_t> parse_port(std::string_view text) {
  uint16_t port = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (text.empty() || fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return port;
}

}  // namespace

bool is_loopback(const std::string& host) {
  boost::system::error_code is_a_name;
  const auto address = boost::asio::ip::make_address(host, is_a_name);
  return is_a_name ? host == "localhost" : address.is_loopback();
}

bool is_reachable_by_others(const std::string& host) {
  boost::system::error_code is_a_name;
  (void)boost::asio::ip::make_address(host, is_a_name);
  return !is_a_name && !is_loopback(host);
}

std::string ListenAddress::text() const {
  const bool needs_brackets = host.find(':') != std::string::npos;
  return (needs_brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::optional<ListenAddress> parse_listen_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::optional<uint16_t> port = parse_port(text.substr(colon + 1));
  std::string_view host = text.substr(0, colon);
  // Brackets come in pairs and mark an IPv6 address; without them a colon ends the host.
  if (host.starts_with('[') != host.ends_with(']')) return std::nullopt;
  const bool in_brackets = host.size() > 2 && host.front() == '[';
  if (in_brackets) host = host.substr(1, host.size() - 2);
  if (host.find_first_of("[]/@ \t\r\n") != std::string_view::npos) return std::nullopt;
  if (!port || (!in_brackets && host.find(':') != std::string_view::npos)) return std::nullopt;
  // An empty host means all IPv4 interfaces.
  return ListenAddress{host.empty() ? "0.0.0.0" : std::string(host), *port};
}

ListenAddress address_of_local_rank(const ListenAddress& first, int local_rank) {
  if (first.port == 0) return first;
  const int port = int{first.port} + local_rank;
  // Port 0 lets the system choose.
  return {first.host, port > 65535 ? uint16_t{0} : static_cast<uint16_t>(port)};
}

std::string reachable_address(const ListenAddress& bound, const std::string& node) {
  const bool every_interface = bound.host == "0.0.0.0" || bound.host == "::";
  return ListenAddress{every_interface ? node : bound.host, bound.port}.text();
}

}  // namespace lockstep::metrics
