#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::metrics {

/// Section tls_server_config. Paths are ready to open.
struct TlsOptions {
  std::string cert_file;  ///< PEM, the server's certificate first, then its issuers
  std::string key_file;   ///< PEM, without a pass phrase
  std::string client_auth_type = "NoClientCert";
  std::string client_ca_file;                    ///< PEM; empty: none
  std::vector<std::string> client_allowed_sans;  ///< empty: every trusted certificate
  std::string min_version = "TLS12", max_version = "TLS13";
};

/// Content of a web configuration file, the format that Prometheus' exporters share.
struct WebConfig {
  std::optional<TlsOptions> tls;
  std::map<std::string, std::string> hash_by_user;           ///< bcrypt
  std::vector<std::pair<std::string, std::string>> headers;  ///< headers of every answer
};

/// Reads such a file. Relative paths in it start at its own folder. Throws Error: kConfig with all
/// faults and their places, kInputMissing if the file does not exist. The files that it names are
/// not opened.
WebConfig read_web_config(const std::string& path);

}  // namespace lockstep::metrics
