#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/yaml/config_reader.h"
#include "metrics/http/password_checker.h"

/// Access to the HTTP server: web configuration file, passwords, token, and calls from browsers.
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

/// Access keys of a section whose pages others may reach. Paths are ready to open; empty: none.
struct AccessOptions {
  std::string web_config;
  std::string token_file;
  std::string token;  ///< not a key: secret that processes of one run share
};

/// Reads `web_config` and `token_file`. Does not open the files.
AccessOptions read_access_options(ConfigReader* in);

/// Returns 64 random hexadecimal digits, not guessable.
std::string random_token();

/// Access control of a server: users with passwords, and anyone with the token. Everybody has
/// access if there is neither. Files are read once.
class Access {
 public:
  enum class Verdict {
    kAllowed,
    kDenied,
    kBusy  ///< too many attempts at once; try again later
  };
  using Answer = std::function<void(Verdict)>;

  /// Reads the files. Throws Error: kConfig for a faulty file, a token below 16 characters or with
  /// a blank in it; kInputMissing for a missing file.
  explicit Access(const AccessOptions& options);
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

  const WebConfig& config() const { return config_; }
  bool asks() const { return !token_.empty() || checker_.has_value(); }
  /// True if the server may listen at addresses that other hosts reach. TLS without client
  /// certificates protects the connection but admits any client.
  bool protects() const {
    return asks() || (config_.tls && config_.tls->client_auth_type == "RequireAndVerifyClientCert");
  }
  /// Returns the value of WWW-Authenticate: the accepted credentials.
  std::string wanted() const;

  /// Checks the value of the header Authorization for the client at this address. `answer` is
  /// called once, either before this returns or later on another thread. The latter happens while a
  /// password is checked for the first time. `answer` is never called if stop() comes first.
  void ask(std::string_view authorization, const std::string& client, const Answer& answer);
  /// Stops the checks. No answer comes after it, and ask() must not be called again.
  void stop() {
    if (checker_) checker_->stop();
  }

 private:
  void check_password(const std::string& login, const std::string& client, const Answer& answer);

  WebConfig config_;
  std::string token_;
  const std::string secret_ = random_token();
  std::mutex mutex_;
  /// Digests, with a random secret, of users and passwords that were correct, so memory contains no
  /// password. Guarded by mutex_.
  std::set<std::string> passed_;
  std::optional<PasswordChecker> checker_;  // declared last: its thread uses the other members
};

/// True if a POST with these values of X-Lockstep-Control and Host cannot come from a web page in a
/// browser. Such a page cannot send a header of that name without permission. If it uses its own
/// name for this host (DNS rebinding), it cannot hide that name.
bool comes_from_no_browser(std::string_view control, std::string_view host);

/// True if the value of the header Host names this host: localhost, an address, or the name in
/// metrics.listen.
bool is_own_name(std::string_view host, std::string_view listen_host);

}  // namespace lockstep::metrics
