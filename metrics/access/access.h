#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "base/yaml/config_reader.h"
#include "metrics/access/web_config.h"

namespace lockstep::metrics {

/// Keys of a section whose pages others may reach; paths as they can be opened, empty: none.
struct AccessOptions {
  std::string web_config;
  std::string token_file;
  std::string token;  ///< no key: what processes of one run tell each other
};

/// Reads `web_config` and `token_file`. The files are not opened.
AccessOptions read_access_options(ConfigReader* in);

/// 64 hexadecimal digits that nobody can guess.
std::string random_token();

/// Who may ask a server: users with passwords and whoever has the token; everybody if there is
/// neither. Files are read once.
class Access {
 public:
  enum class Verdict {
    kAllowed,
    kDenied,
    kBusy  ///< too many tries at once; the same again later
  };
  using Answer = std::function<void(Verdict)>;

  /// Throws Error: kConfig for a faulty file, a token below 16 characters or with a blank in it,
  /// kInputMissing for one that is not there.
  explicit Access(const AccessOptions& options);
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

  const WebConfig& config() const { return config_; }
  bool asks() const { return !token_.empty() || passwords_ != nullptr; }
  /// Whether it may listen where other hosts reach it: TLS without a client's certificate hides the
  /// pages from those who listen on the wire, not from those who ask.
  bool protects() const {
    return asks() || (config_.tls && config_.tls->client_auth_type == "RequireAndVerifyClientCert");
  }
  /// Value of WWW-Authenticate: what to come with.
  std::string wanted() const;

  /// Judges the value of the header Authorization, from the client at this address. `answer` is
  /// called once: before this returns, or later on another thread, while a password is looked at
  /// that was not yet seen to be right; not at all if stop() comes before.
  void ask(std::string_view authorization, const std::string& client, const Answer& answer);
  /// No answer comes after it, and ask() must not be called again.
  void stop();

 private:
  class Passwords;

  WebConfig config_;
  std::string token_;
  std::unique_ptr<Passwords> passwords_;
};

}  // namespace lockstep::metrics
