#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include <boost/asio/ssl/context.hpp>

#include "metrics/access/web_config.h"

namespace lockstep::metrics {

/// Creates a server's TLS context: certificate, versions, required client certificates. Throws
/// Error(kConfig) with the file and OpenSSL's message.
boost::asio::ssl::context make_tls_context(const TlsOptions& options);

/// TLS context that follows its files, since certificates are renewed during a run.
class RenewedTlsContext {
 public:
  /// Throws as make_tls_context().
  explicit RenewedTlsContext(TlsOptions options);

  /// Returns a context of the current files. Returns the previous one if the files have not changed
  /// or are not usable; the latter is logged.
  std::shared_ptr<boost::asio::ssl::context> get();

 private:
  std::vector<std::filesystem::file_time_type> times_of_files() const;

  const TlsOptions options_;
  std::vector<std::filesystem::file_time_type> times_;
  std::shared_ptr<boost::asio::ssl::context> context_;
};

}  // namespace lockstep::metrics
