#include "remote/credentials.h"

#include <array>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/text.h"
#include "remote/roles.h"

namespace lockstep::remote {
std::string variable(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no thread sets any
  return value == nullptr ? "" : value;
}

namespace {

using Section = std::map<std::string, std::string>;

/// Returns the first text that is not empty.
std::string first_of(std::initializer_list<std::string> texts) {
  for (const std::string& text : texts)
    if (!text.empty()) return text;
  return "";
}

/// Returns the keys of `[name]` in a file of sections; empty if no such file.
Section section_of(const std::filesystem::path& file, const std::string& name) {
  constexpr int64_t kMaxBytes = int64_t{1} << 20;
  std::error_code ignored;
  if (file.empty() || !std::filesystem::exists(file, ignored)) return {};
  const std::string text = files::read(file, kMaxBytes);
  Section keys;
  bool is_it = false;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = trimmed(rest.substr(0, rest.find('\n')));
    rest.remove_prefix(std::min(rest.find('\n'), rest.size() - 1) + 1);
    if (line.starts_with('[')) is_it = trimmed(line.substr(1, line.find(']') - 1)) == name;
    const size_t equals = line.find('=');
    if (is_it && equals != std::string_view::npos && !line.starts_with('#'))
      keys[std::string(trimmed(line.substr(0, equals)))] = trimmed(line.substr(equals + 1));
  }
  return keys;
}

/// Returns a file that a variable names, or the usual one in ~/.aws.
std::filesystem::path file_in_home(const char* named_by, const char* usual) {
  if (const std::string named = variable(named_by); !named.empty()) return named;
  const std::string home = variable("HOME");
  return home.empty() ? std::filesystem::path() : std::filesystem::path(home) / ".aws" / usual;
}

[[noreturn]] void refuse_access(const std::string& what) {
  throw Error(ExitCode::kConfig, "remote", what);
}

/// Returns the key in two variables; empty if neither is set.
Credentials key_of(const char* id_name, const char* secret_name) {
  Credentials key{variable(id_name), variable(secret_name), "",
                  std::string("the environment (") + id_name + ")"};
  if (key.key_id.empty() != key.secret.empty())
    refuse_access(std::string(key.key_id.empty() ? id_name : secret_name) + " is not set, but " +
                  (key.key_id.empty() ? secret_name : id_name) + " is: set both or neither");
  return key.key_id.empty() ? Credentials{} : key;
}

/// Returns the key of the profile in the credentials file; empty if the default profile has none.
Credentials profile_key() {
  const std::string named = variable("AWS_PROFILE"), name = named.empty() ? "default" : named;
  const std::filesystem::path file = file_in_home("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  Section keys = section_of(file, name);
  const std::string place = "profile '" + name + "' of " + file.string();
  Credentials key{keys["aws_access_key_id"], keys["aws_secret_access_key"],
                  keys["aws_session_token"], place};
  if (!key.key_id.empty() && !key.secret.empty()) return key;
  // A profile that the user named must have a key. The default profile may lack one.
  if (!named.empty() || !key.key_id.empty() || !key.secret.empty())
    refuse_access(place + ": no aws_access_key_id and aws_secret_access_key found");
  return {};
}

/// Returns the endpoint without trailing slashes after checking its form.
std::string checked_endpoint(const std::string& endpoint, const char* name) {
  const bool is_url = endpoint.starts_with("http://") || endpoint.starts_with("https://");
  if (!endpoint.empty() && !is_url)
    refuse_access(std::string(name) + ": '" + log::without_passwords(endpoint) +
                  "' must begin with http:// or https://");
  // The value is never shown, because the text before an @ is a secret.
  if (endpoint.find_first_of("@?#% ") != std::string::npos)
    refuse_access(std::string(name) +
                  " may contain a host, a port and a path, but no user, password, query or %: keys "
                  "have separate variables");
  return endpoint.substr(0, endpoint.find_last_not_of('/') + 1);
}

}  // namespace

Access amazon_access() {
  Access access;
  access.credentials = key_of("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY");
  if (!access.credentials.key_id.empty())
    access.credentials.session_token = variable("AWS_SESSION_TOKEN");
  else
    access.credentials = profile_key();
  const std::string profile = first_of({variable("AWS_PROFILE"), "default"});
  // In the config file the sections of named profiles begin with the word "profile".
  Section settings = section_of(file_in_home("AWS_CONFIG_FILE", "config"),
                                profile == "default" ? profile : "profile " + profile);
  access.region = first_of(
      {variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"), settings["region"], "us-east-1"});
  access.endpoint =
      checked_endpoint(first_of({variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL")}),
                       "AWS_ENDPOINT_URL");
  if (access.credentials.key_id.empty()) access.credentials = amazon_role_key(access.region);
  access.hint = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";
  return access;
}

Access google_access() {
  const std::string endpoint = checked_endpoint(variable("GS_ENDPOINT_URL"), "GS_ENDPOINT_URL");
  Credentials key = key_of("GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY");
  if (key.key_id.empty()) key = google_account_key();
  return {.credentials = std::move(key),
          .region = "auto",
          .endpoint = first_of({endpoint, "https://storage.googleapis.com"}),
          .hint = "GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY",
          .is_google = true};
}

// Signatures by AWS Signature Version 4, and Google's V4 form with other names:
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
// https://cloud.google.com/storage/docs/authentication/signatures

/// Returns the HMAC-SHA-256, 32 bytes.
static std::string hmac(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  unsigned int num_bytes = 0;
  ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(text.data()), text.size(), sum.data(), &num_bytes);
  return {reinterpret_cast<const char*>(sum.data()), num_bytes};
}

/// Returns lower-case hex digits.
static std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

/// Returns the query, encoded and sorted by name.
static std::string query_text(const Query& query) {
  std::string text;
  for (const auto& [name, value] : query)
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", percent_encoded(name, false),
                        percent_encoded(value, false));
  return text;
}

/// Formats a time in UTC.
static std::string utc(std::time_t now, const char* format) {
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format, &parts)};
}

/// Returns the names of the headers, separated by semicolons.
static std::string names_of(const Headers& headers) {
  std::string names;
  for (const auto& [name, value] : headers) names += (names.empty() ? "" : ";") + name;
  return names;
}

// The maps are sorted by name, as the canonical form requires.
static std::string canonical_text(const Request& request, const std::string& body_sum) {
  std::string headers;
  for (const auto& [name, value] : request.headers) headers += name + ":" + value + "\n";
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, percent_encoded(request.path, true),
                     query_text(request.query), headers, names_of(request.headers), body_sum);
}

std::string percent_encoded(std::string_view text, bool keeps_slashes) {
  std::string encoded;
  for (const char byte : text) {
    const bool is_plain = (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') ||
                          (byte >= '0' && byte <= '9') || byte == '-' || byte == '.' ||
                          byte == '_' || byte == '~' || (byte == '/' && keeps_slashes);
    if (is_plain)
      encoded += byte;
    else
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(byte));
  }
  return encoded;
}

std::string Request::url() const {
  const std::string parameters = query_text(query);
  return origin + percent_encoded(path, true) + (parameters.empty() ? "" : "?") + parameters;
}

int64_t Request::body_bytes() const {
  int64_t num_bytes = 0;
  for (const std::string_view text : body) num_bytes += static_cast<int64_t>(text.size());
  return num_bytes;
}

/// Returns the digest of the body to sign. A large one is protected by its checksum among the
/// headers, which cost a fraction of the time.
static std::string body_digest(const Request& request) {
  constexpr int64_t kMostToDigest = int64_t{1} << 20;
  if (request.body_bytes() > kMostToDigest) return "UNSIGNED-PAYLOAD";
  Sha256 digest;
  for (const std::string_view text : request.body) digest.add(text);
  return digest.hex();
}

void sign(const Access& access, std::time_t now, Request* request) {
  const Credentials& credentials = access.credentials;
  Headers& headers = request->headers;
  if (!credentials.bearer.empty()) headers["authorization"] = "Bearer " + credentials.bearer;
  if (credentials.key_id.empty()) return;
  const std::string day = utc(now, "%Y%m%d"), time = utc(now, "%Y%m%dT%H%M%SZ");
  const std::string prefix = access.is_google ? "x-goog-" : "x-amz-";
  const std::string name = access.is_google ? "GOOG4" : "AWS4";
  const std::string service = access.is_google ? "storage" : "s3";
  const std::string end = access.is_google ? "goog4_request" : "aws4_request";
  headers.erase("authorization");  // of an earlier try
  headers[prefix + "date"] = time;
  const std::string body_sum = body_digest(*request);
  headers[prefix + "content-sha256"] = body_sum;
  if (!credentials.session_token.empty())
    headers["x-amz-security-token"] = credentials.session_token;
  const std::string scope = fmt::format("{}/{}/{}/{}", day, access.region, service, end);
  const std::string text = fmt::format("{}-HMAC-SHA256\n{}\n{}\n{}", name, time, scope,
                                       sha256_hex(canonical_text(*request, body_sum)));
  // The signing key is derived from the secret for this day, region and service.
  const std::string key =
      hmac(hmac(hmac(hmac(name + credentials.secret, day), access.region), service), end);
  const std::string names = names_of(headers);
  headers["authorization"] =
      fmt::format("{}-HMAC-SHA256 Credential={}/{},SignedHeaders={},Signature={}", name,
                  credentials.key_id, scope, names, hex(hmac(key, text)));
}

}  // namespace lockstep::remote
