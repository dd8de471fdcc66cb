#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::metrics {

/// Section tls_server_config: paths as they can be opened.
struct TlsOptions {
  std::string cert_file;  ///< PEM, the server's certificate first, then those that signed it
  std::string key_file;   ///< PEM, without a pass phrase
  std::string client_auth_type = "NoClientCert";
  std::string client_ca_file;                    ///< PEM; empty: none
  std::vector<std::string> client_allowed_sans;  ///< empty: every certificate that is trusted
  std::string min_version = "TLS12", max_version = "TLS13";
};

/// What stands in a file of the format that the exporters of Prometheus share.
struct WebConfig {
  std::optional<TlsOptions> tls;
  std::map<std::string, std::string> hash_by_user;           ///< bcrypt
  std::vector<std::pair<std::string, std::string>> headers;  ///< of every answer
};

/// Reads such a file. Relative paths in it begin at its own folder. Throws Error: kConfig with all
/// faults and their places, kInputMissing if the file is not there. The files that it names are not
/// opened.
WebConfig read_web_config(const std::string& path);

}  // namespace lockstep::metrics
