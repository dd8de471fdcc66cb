#pragma once

#include <boost/asio/ssl/context.hpp>

#include "metrics/http/web_config.h"

namespace lockstep::metrics {

/// A server's side of TLS: certificate, versions, which certificates it wants of clients. Throws
/// Error(kConfig), naming the file and what OpenSSL says of it.
boost::asio::ssl::context make_tls_context(const TlsOptions& options);

}  // namespace lockstep::metrics
