#include "metrics/http/no_browser.h"

#include <string>

#include <boost/asio/ip/address.hpp>
#include <boost/beast/core/string.hpp>

#include "metrics/http/listen_address.h"

namespace lockstep::metrics {

namespace {

/// Returns the host without the port; empty if the value names no host.
std::string name_of(std::string_view host) {
  const auto with_port = parse_listen_address(host);
  const auto alone = parse_listen_address(std::string(host) + ":0");
  return with_port ? with_port->host : alone ? alone->host : "";
}

bool is_localhost_or_address(const std::string& name) {
  boost::system::error_code is_a_name;
  (void)boost::asio::ip::make_address(name, is_a_name);
  return boost::beast::iequals(name, "localhost") || !is_a_name;
}

}  // namespace

bool comes_from_no_browser(std::string_view control, std::string_view host) {
  // Browsers send a custom header to another origin only after a CORS preflight, which this server
  // does not grant.
  return !control.empty() && is_localhost_or_address(name_of(host));
}

bool is_own_name(std::string_view host, std::string_view listen_host) {
  const std::string name = name_of(host);
  return is_localhost_or_address(name) ||
         boost::beast::iequals(name, {listen_host.data(), listen_host.size()});
}

}  // namespace lockstep::metrics
