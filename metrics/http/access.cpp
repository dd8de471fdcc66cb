#include "metrics/http/access.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <yaml-cpp/yaml.h>
#include <boost/asio/ip/address.hpp>
#include <boost/beast/core/string.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/yaml/yaml_document.h"
#include "metrics/http/listen_address.h"

// Access to the HTTP server. Reads the web configuration of Prometheus' exporter-toolkit. Keys and
// values are the same, so that one file can serve several exporters.
namespace lockstep::metrics {
namespace {

// Values of Prometheus' exporter-toolkit.
const std::vector<std::string> kClientAuthTypes = {
    "NoClientCert", "RequestClientCert", "RequireAnyClientCert", "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert"};
const std::vector<std::string> kVersions = {"TLS10", "TLS11", "TLS12", "TLS13"};
constexpr std::array kHeaders = {"Content-Security-Policy", "X-Frame-Options",
                                 "X-Content-Type-Options", "X-XSS-Protection",
                                 "Strict-Transport-Security"};

/// Returns a path relative to the configuration file's folder.
std::string beside(const ConfigReader& in, const std::string& file) {
  if (file.empty()) return file;
  return (std::filesystem::path(in.document().file()).parent_path() / file).string();
}

void read_file(ConfigReader* in, const char* key, std::string* file) {
  in->read(key, file, "PEM");
  *file = beside(*in, *file);
}

/// Finds contradictions between client_auth_type and the keys that depend on it.
void check_clients(const TlsOptions& tls, ConfigReader* in) {
  const bool verifies = tls.client_auth_type == "VerifyClientCertIfGiven" ||
                        tls.client_auth_type == "RequireAndVerifyClientCert";
  if (verifies && tls.client_ca_file.empty())
    in->fault("client_auth_type",
              fmt::format("'{}' needs 'client_ca_file', the certificates that may sign a client's",
                          tls.client_auth_type));
  if (!verifies && !tls.client_ca_file.empty())
    in->fault(
        "client_ca_file",
        fmt::format(
            "'client_ca_file' is ignored with client_auth_type {}: use RequireAndVerifyClientCert",
            tls.client_auth_type));
  if (!tls.client_allowed_sans.empty() && tls.client_auth_type != "RequireAndVerifyClientCert")
    in->fault("client_allowed_sans",
              "'client_allowed_sans' needs client_auth_type RequireAndVerifyClientCert");
}

TlsOptions read_tls(ConfigReader in) {
  TlsOptions tls;
  in.require("cert_file");
  in.require("key_file");
  read_file(&in, "cert_file", &tls.cert_file);
  read_file(&in, "key_file", &tls.key_file);
  in.read_choice("client_auth_type", &tls.client_auth_type, kClientAuthTypes, "");
  read_file(&in, "client_ca_file", &tls.client_ca_file);
  in.read("client_allowed_sans", &tls.client_allowed_sans, "");
  in.read_choice("min_version", &tls.min_version, kVersions, "");
  in.read_choice("max_version", &tls.max_version, kVersions, "");
  if (tls.min_version > tls.max_version)
    in.fault("min_version", fmt::format("'min_version' {} is above 'max_version' {}",
                                        tls.min_version, tls.max_version));
  check_clients(tls, &in);
  in.done();
  return tls;
}

/// Reads section http_server_config. `http2` is accepted without effect: this server speaks only
/// HTTP/1.1, which every client understands.
std::vector<std::pair<std::string, std::string>> read_http(ConfigReader in) {
  bool http2 = false;
  in.read("http2", &http2, "");
  std::vector<std::pair<std::string, std::string>> headers;
  ConfigReader section = in.section("headers");
  for (const char* name : kHeaders) {
    std::string value;
    if (!section.read(name, &value, "")) continue;
    // A line break would allow further headers.
    if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20; }))
      section.fault(name, fmt::format("'{}' must be one line", name));
    headers.emplace_back(name, value);
  }
  section.done();
  in.done();
  return headers;
}

/// Reads the users and checks each hash, so that faults are found before a login.
std::map<std::string, std::string> read_users(ConfigReader* in) {
  std::map<std::string, std::string> hash_by_user;
  const YAML::Node users = in->take("basic_auth_users");
  if (!users) return hash_by_user;
  if (!users.IsMap()) {
    in->fault("basic_auth_users", "'basic_auth_users' must be a map of names and bcrypt hashes");
    return hash_by_user;
  }
  for (const auto& user : users) {
    const std::string name = user.first.Scalar(), hash = user.second.Scalar();
    if (name.empty() || name.find(':') != std::string::npos)
      in->fault_at(user.first, "a user's name has at least one character and no colon");
    else if (const std::string fault = fault_of_bcrypt_hash(hash); !fault.empty())
      in->fault_at(user.second, fmt::format("the password of '{}' {}", name, fault));
    else
      hash_by_user[name] = hash;
  }
  return hash_by_user;
}

constexpr size_t kMinTokenCharacters = 16, kMaxTokenCharacters = 4096;  // half of a header
constexpr size_t kSecretBytes = 32;

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

/// Returns the host without the port; empty if the value names no host.
std::string name_of(std::string_view host) {
  const auto with_port = parse_listen_address(host);
  const auto alone = parse_listen_address(std::string(host) + ":0");
  return with_port ? with_port->host : alone ? alone->host : "";
}

bool is_localhost_or_address(const std::string& name) {
  boost::system::error_code is_a_name;
  (void)boost::asio::ip::make_address(name, is_a_name);
  return boost::beast::iequals(name, "localhost") || !is_a_name;
}

}  // namespace

WebConfig read_web_config(const std::string& path) {
  Diagnostics faults;
  const YamlDocument document = YamlDocument::load(path, &faults);
  WebConfig config;
  ConfigReader in(document.root(), "", document, &faults);
  const ConfigReader tls = in.section("tls_server_config");
  if (in.has("tls_server_config")) config.tls = read_tls(tls);
  config.headers = read_http(in.section("http_server_config"));
  config.hash_by_user = read_users(&in);
  in.done();
  faults.throw_if_any("metrics");
  return config;
}

std::string random_token() {
  std::string bytes(kSecretBytes, '\0');
  check(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), kSecretBytes) == 1,
        "OpenSSL has random bytes");
  return sha256_hex(bytes);
}

AccessOptions read_access_options(ConfigReader* in) {
  AccessOptions options;
  in->read("web_config", &options.web_config,
           "Prometheus web-config file: TLS, users with bcrypt passwords");
  in->read("token_file", &options.token_file, "file with a bearer token of at least 16 characters");
  for (std::string* path : {&options.web_config, &options.token_file})
    *path = path_beside(in->document(), *path).string();
  return options;
}

Access::Access(const AccessOptions& options) : token_(options.token) {
  if (!options.web_config.empty()) config_ = read_web_config(options.web_config);
  if (!options.token_file.empty()) token_ = read_token(options.token_file);
  if (!config_.hash_by_user.empty()) checker_.emplace(config_.hash_by_user);
}

std::string Access::wanted() const {
  return checker_ ? R"(Basic realm="lockstep", charset="UTF-8")" : R"(Bearer realm="lockstep")";
}

void Access::check_password(const std::string& login, const std::string& client,
                            const Answer& answer) {
  const size_t colon = login.find(':');
  // RFC 7617: a user's name contains no colon, a password may.
  if (colon == login.npos) return answer(Verdict::kDenied);
  // bcrypt is slow by design. A password that was correct before needs only this digest.
  const std::string digest = sha256_hex(secret_ + login);
  const auto is_passed = [&] {
    const std::lock_guard lock(mutex_);
    return passed_.contains(digest);
  };
  if (is_passed()) return answer(Verdict::kAllowed);
  const auto done = [this, digest, answer](bool is_right) {
    if (is_right) {
      const std::lock_guard lock(mutex_);
      passed_.insert(digest);
    }
    answer(is_right ? Verdict::kAllowed : Verdict::kDenied);
  };
  if (!checker_->check(client, login.substr(0, colon), login.substr(colon + 1), done))
    answer(Verdict::kBusy);
}

// Without users and token, everybody has access.
void Access::ask(std::string_view authorization, const std::string& client, const Answer& answer) {
  if (!asks()) return answer(Verdict::kAllowed);
  if (const auto given = after_scheme(authorization, "Bearer"); given && !token_.empty())
    return answer(same_secret(*given, token_) ? Verdict::kAllowed : Verdict::kDenied);
  const auto given = after_scheme(authorization, "Basic");
  const std::optional<std::string> login = given ? base64_decoded(*given) : std::nullopt;
  if (!login || !checker_) return answer(Verdict::kDenied);
  check_password(*login, client, answer);
}

bool comes_from_no_browser(std::string_view control, std::string_view host) {
  // Browsers send a custom header to another origin only after a CORS preflight, which this server
  // does not grant.
  return !control.empty() && is_localhost_or_address(name_of(host));
}

bool is_own_name(std::string_view host, std::string_view listen_host) {
  const std::string name = name_of(host);
  return is_localhost_or_address(name) ||
         boost::beast::iequals(name, {listen_host.data(), listen_host.size()});
}

}  // namespace lockstep::metrics
