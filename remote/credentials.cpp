#include "remote/credentials.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/text.h"
#include "remote/http.h"
#include "remote/store_answers.h"

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

// Keys that a cloud gives to its own pods, tasks and machines.

namespace {

constexpr double kServiceTimeoutS = 5;
/// Longest wait for a service that most machines lack.
constexpr double kMachineTimeoutS = 1;

/// Returns a text of a JSON object; empty if it is missing.
std::string text_in(const nlohmann::json& page, const char* name) {
  const auto found = page.find(name);
  return found != page.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Parses {"AccessKeyId", "SecretAccessKey", "Token" or "SessionToken", "Expiration"}.
Credentials key_in(const nlohmann::json& page, const std::string& source) {
  if (!page.is_object()) return {};
  const std::string token = text_in(page, "Token");
  Credentials key{.key_id = text_in(page, "AccessKeyId"),
                  .secret = text_in(page, "SecretAccessKey"),
                  .session_token = token.empty() ? text_in(page, "SessionToken") : token,
                  .source = source};
  if (const auto end = page.find("Expiration"); end != page.end())
    key.expires_s = end->is_number() ? static_cast<std::time_t>(end->get<double>())
                                     : parse_time(text_in(page, "Expiration"));
  return key.key_id.empty() || key.secret.empty() ? Credentials{} : key;
}

Credentials key_of_page(const std::optional<std::string>& page, const std::string& source) {
  return page ? key_in(nlohmann::json::parse(*page, nullptr, /*allow_exceptions=*/false), source)
              : Credentials{};
}

/// Throws unless the key is complete. It was asked for by settings, so an unsigned request would
/// only hide the fault.
Credentials required(Credentials key, const std::string& place) {
  if (!key.key_id.empty()) return key;
  throw Error(
      ExitCode::kConfig, "remote",
      fmt::format("{} gives no key: is the role bound to this pod, task or account?", place));
}

Credentials container_key() {
  const std::string relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string url = relative.empty() ? variable("AWS_CONTAINER_CREDENTIALS_FULL_URI")
                                           : "http://169.254.170.2" + relative;
  if (url.empty()) return {};
  std::string token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !file.empty())
    token = trimmed(files::read(file, int64_t{1} << 20));
  std::vector<std::string> headers;
  if (!token.empty()) headers.push_back("Authorization: " + token);
  return required(
      key_of_page(fetch_page("GET", url, headers, kServiceTimeoutS), "the container's role"), url);
}

Credentials web_identity_key(const std::string& region) {
  const std::string file = variable("AWS_WEB_IDENTITY_TOKEN_FILE"), role = variable("AWS_ROLE_ARN");
  if (file.empty() || role.empty()) return {};
  const std::string own = variable("AWS_ENDPOINT_URL_STS");
  const std::string place = own.empty() ? fmt::format("https://sts.{}.amazonaws.com", region) : own;
  const std::string name = variable("AWS_ROLE_SESSION_NAME");
  const std::string token(trimmed(files::read(file, int64_t{1} << 20)));
  const Query query{{"Action", "AssumeRoleWithWebIdentity"},
                    {"Version", "2011-06-15"},
                    {"RoleArn", role},
                    {"RoleSessionName", name.empty() ? "lockstep" : name},
                    {"WebIdentityToken", token}};
  const Request request{.origin = place, .path = "/", .query = query};
  const auto page =
      fetch_page("POST", request.url(), {"Accept: application/json"}, kServiceTimeoutS);
  if (!page) return required({}, place);
  const auto json = nlohmann::json::parse(*page, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer at(
      "/AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials");
  if (json.is_object() && json.contains(at))
    return required(key_in(json.at(at), "the role " + role), place);
  return required(parse_role_key(*page, "the role " + role), place);
}

Credentials machine_key() {
  if (variable("AWS_EC2_METADATA_DISABLED") == "true") return {};
  const std::string own = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  const std::string place =
      (own.empty() ? "http://169.254.169.254" : own.substr(0, own.find_last_not_of('/') + 1)) +
      "/latest/";
  const auto token = fetch_page("PUT", place + "api/token",
                                {"X-aws-ec2-metadata-token-ttl-seconds: 21600"}, kMachineTimeoutS);
  if (!token) return {};
  const std::vector<std::string> headers{"X-aws-ec2-metadata-token: " + *token};
  const std::string roles = place + "meta-data/iam/security-credentials/";
  const auto role = fetch_page("GET", roles, headers, kServiceTimeoutS);
  if (!role) return {};
  const std::string name(trimmed(role->substr(0, role->find('\n'))));
  return key_of_page(fetch_page("GET", roles + name, headers, kServiceTimeoutS),
                     "this machine's role " + name);
}

}  // namespace

/// Returns the key of a role on Amazon's cloud; empty if there is none. Throws Error(kConfig) if
/// settings name a container's or an account's role that gives no key.
static Credentials amazon_role_key(const std::string& region) {
  Credentials key = container_key();
  if (key.key_id.empty()) key = web_identity_key(region);
  return key.key_id.empty() ? machine_key() : key;
}

/// Returns a bearer token of this machine's service account; empty if it has none.
static Credentials google_account_key() {
  const std::string own = variable("GCE_METADATA_HOST");
  const auto page =
      fetch_page("GET",
                 fmt::format("http://{}/computeMetadata/v1/instance/service-accounts/default/token",
                             own.empty() ? "169.254.169.254" : own),
                 {"Metadata-Flavor: Google"}, kMachineTimeoutS);
  if (!page) return {};
  const auto json = nlohmann::json::parse(*page, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || text_in(json, "access_token").empty()) return {};
  const auto lifetime = json.find("expires_in");
  const int64_t lifetime_s =
      lifetime != json.end() && lifetime->is_number() ? lifetime->get<int64_t>() : 0;
  return {.key_id = "",
          .secret = "",
          .session_token = "",
          .source = "this machine's service account",
          .bearer = text_in(json, "access_token"),
          .expires_s = lifetime_s > 0 ? std::time(nullptr) + lifetime_s : 0};
}

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
