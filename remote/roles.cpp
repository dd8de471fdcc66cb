#include "remote/roles.h"

#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/text.h"
#include "remote/http.h"
#include "remote/store_answers.h"

namespace lockstep::remote {
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

Credentials amazon_role_key(const std::string& region) {
  Credentials key = container_key();
  if (key.key_id.empty()) key = web_identity_key(region);
  return key.key_id.empty() ? machine_key() : key;
}

Credentials google_account_key() {
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

}  // namespace lockstep::remote
