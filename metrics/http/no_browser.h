#pragma once

#include <string_view>

namespace lockstep::metrics {

/// Whether a POST with these values of X-Lockstep-Control and Host can come from no page of a
/// browser: such a page can send no header of that name unasked, nor, under a name of its own that
/// it made to mean this host, hide that name.
bool comes_from_no_browser(std::string_view control, std::string_view host);

/// Whether the value of a header Host names this host: localhost, an address, or the name in
/// metrics.listen.
bool is_own_name(std::string_view host, std::string_view listen_host);

}  // namespace lockstep::metrics
