#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include <boost/asio/ssl/context.hpp>

#include "metrics/access/web_config.h"

namespace lockstep::metrics {

/// A server's side of TLS: certificate, versions, which certificates it wants of clients. Throws
/// Error(kConfig), naming the file and what OpenSSL says of it.
boost::asio::ssl::context make_tls_context(const TlsOptions& options);

/// A context that follows its files: certificates are renewed while a run goes on.
class RenewedTlsContext {
 public:
  /// Throws as make_tls_context().
  explicit RenewedTlsContext(TlsOptions options);

  /// Of the files as they are now. Where they cannot be used, which is logged, or have not changed
  /// since they were last read: the same as before.
  std::shared_ptr<boost::asio::ssl::context> get();

 private:
  std::vector<std::filesystem::file_time_type> times_of_files() const;

  const TlsOptions options_;
  std::vector<std::filesystem::file_time_type> times_;
  std::shared_ptr<boost::asio::ssl::context> context_;
};

}  // namespace lockstep::metrics
