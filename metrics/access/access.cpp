#include "metrics/access/access.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <boost/beast/core/string.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/yaml/path_beside.h"
#include "metrics/access/password_checker.h"

namespace lockstep::metrics {
namespace {

constexpr size_t kMinTokenCharacters = 16, kMaxTokenCharacters = 4096;  // half of a header
constexpr size_t kSecretBytes = 32;

std::string random_secret() {
  std::string bytes(kSecretBytes, '\0');
  check(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), kSecretBytes) == 1,
        "OpenSSL has random bytes");
  return bytes;
}

/// Reads the token from its file. Throws Error(kConfig) for an unsafe or unusual token.
std::string read_token(const std::string& path) {
  std::string text = YamlDocument::read_text(path);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  const bool is_plain =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (!is_plain || text.size() < kMinTokenCharacters || text.size() > kMaxTokenCharacters)
    throw Error(ExitCode::kConfig, "metrics",
                fmt::format("{}: a token is one line of {} to {} printable characters without "
                            "blanks; 'openssl rand -hex 32' makes one",
                            path, kMinTokenCharacters, kMaxTokenCharacters));
  return text;
}

/// Compares two secrets in a time that does not depend on their content. Comparing digests also
/// hides the length.
bool same_secret(std::string_view a, std::string_view b) {
  const std::string first = sha256_hex(a), second = sha256_hex(b);
  return CRYPTO_memcmp(first.data(), second.data(), first.size()) == 0;
}

/// Returns the text after the scheme ("Basic dTpw"). The scheme is not case-sensitive.
std::optional<std::string_view> after_scheme(std::string_view authorization,
                                             std::string_view scheme) {
  if (authorization.size() <= scheme.size() + 1 || authorization[scheme.size()] != ' ')
    return std::nullopt;
  const std::string_view word = authorization.substr(0, scheme.size());
  if (!boost::beast::iequals({word.data(), word.size()}, {scheme.data(), scheme.size()}))
    return std::nullopt;
  return authorization.substr(scheme.size() + 1);
}

/// Decodes base64; nullopt for invalid text.
std::optional<std::string> base64_decoded(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  const int num_bytes = text.size() % 4 != 0
                            ? -1
                            : EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                              reinterpret_cast<const unsigned char*>(text.data()),
                                              static_cast<int>(text.size()));
  if (num_bytes < 0) return std::nullopt;
  // EVP_DecodeBlock() does not subtract the padding.
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  bytes.resize(static_cast<size_t>(num_bytes) - std::min(padding, bytes.size()));
  return bytes;
}

}  // namespace

std::string random_token() { return sha256_hex(random_secret()); }

AccessOptions read_access_options(ConfigReader* in) {
  AccessOptions options;
  in->read("web_config", &options.web_config,
           "file of Prometheus' web-config format: TLS and users with bcrypt passwords");
  in->read("token_file", &options.token_file,
           "file with a bearer token that opens the pages, at least 16 characters");
  for (std::string* path : {&options.web_config, &options.token_file})
    *path = path_beside(in->document(), *path).string();
  return options;
}

/// Passwords, and a cache of those that were correct. The cache has digests with a random secret,
/// so memory contains no password.
class Access::Passwords {
 public:
  explicit Passwords(const std::map<std::string, std::string>& hash_by_user)
      : checker_(hash_by_user) {}

  void ask(const std::string& login, const std::string& client, const Answer& answer) {
    const size_t colon = login.find(':');
    // RFC 7617: a user's name contains no colon, a password may.
    if (colon == login.npos) return answer(Verdict::kDenied);
    // bcrypt is slow by design. A password that was correct before needs only this digest.
    std::string digest = sha256_hex(secret_ + login);
    if (is_passed(digest)) return answer(Verdict::kAllowed);
    const auto done = [this, digest = std::move(digest), answer](bool is_right) {
      if (is_right) note_passed(digest);
      answer(is_right ? Verdict::kAllowed : Verdict::kDenied);
    };
    if (!checker_.check(client, login.substr(0, colon), login.substr(colon + 1), done))
      answer(Verdict::kBusy);
  }
  void stop() { checker_.stop(); }

 private:
  bool is_passed(const std::string& digest) {
    const std::lock_guard lock(mutex_);
    return passed_.contains(digest);
  }
  void note_passed(const std::string& digest) {
    const std::lock_guard lock(mutex_);
    passed_.insert(digest);
  }

  const std::string secret_ = random_secret();
  std::mutex mutex_;
  std::set<std::string> passed_;  // guarded by mutex_; at most one per user
  PasswordChecker checker_;       // declared last: its thread uses the other members
};

Access::Access(const AccessOptions& options) : token_(options.token) {
  if (!options.web_config.empty()) config_ = read_web_config(options.web_config);
  if (!options.token_file.empty()) token_ = read_token(options.token_file);
  if (!config_.hash_by_user.empty()) passwords_ = std::make_unique<Passwords>(config_.hash_by_user);
}

Access::~Access() = default;

void Access::stop() {
  if (passwords_) passwords_->stop();
}

std::string Access::wanted() const {
  return passwords_ ? R"(Basic realm="lockstep", charset="UTF-8")" : R"(Bearer realm="lockstep")";
}

// Without users and token, everybody has access.
void Access::ask(std::string_view authorization, const std::string& client, const Answer& answer) {
  if (!asks()) return answer(Verdict::kAllowed);
  if (const auto given = after_scheme(authorization, "Bearer"); given && !token_.empty())
    return answer(same_secret(*given, token_) ? Verdict::kAllowed : Verdict::kDenied);
  const auto given = after_scheme(authorization, "Basic");
  const std::optional<std::string> login = given ? base64_decoded(*given) : std::nullopt;
  if (!login || !passwords_) return answer(Verdict::kDenied);
  passwords_->ask(*login, client, answer);
}

}  // namespace lockstep::metrics
