#include "daemon/serve/serve_options.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::daemon {

std::optional<metrics::ListenAddress> address_of(const std::string& listen) {
  // As metrics.listen of a run file.
  if (listen == "off") return std::nullopt;
  const std::optional<metrics::ListenAddress> address = metrics::parse_listen_address(listen);
  if (!address)
    throw Error(
        ExitCode::kUsage, "serve",
        fmt::format("--listen {}: it takes HOST:PORT, such as 127.0.0.1:9463, or off", listen));
  return address;
}

}  // namespace lockstep::daemon
