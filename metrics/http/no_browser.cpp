#include "metrics/http/no_browser.h"

#include <string>

#include <boost/asio/ip/address.hpp>

#include "metrics/http/listen_address.h"

namespace lockstep::metrics {

bool comes_from_no_browser(std::string_view control, std::string_view host) {
  if (control.empty()) return false;
  const auto with_port = parse_listen_address(host);
  const auto alone = parse_listen_address(std::string(host) + ":0");
  const std::string name = with_port ? with_port->host : alone ? alone->host : "";
  boost::system::error_code is_a_name;
  (void)boost::asio::ip::make_address(name, is_a_name);
  return name == "localhost" || !is_a_name;
}

}  // namespace lockstep::metrics
