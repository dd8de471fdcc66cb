#pragma once

#include <string_view>

namespace lockstep::metrics {

/// True if a POST with these values of X-Lockstep-Control and Host cannot come from a web page in a
/// browser. Such a page cannot send a header of that name without permission. If it uses its own
/// name for this host (DNS rebinding), it cannot hide that name.
bool comes_from_no_browser(std::string_view control, std::string_view host);

/// True if the value of the header Host names this host: localhost, an address, or the name in
/// metrics.listen.
bool is_own_name(std::string_view host, std::string_view listen_host);

}  // namespace lockstep::metrics
