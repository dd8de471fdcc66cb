#include "metrics/access/web_config.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/yaml/config_reader.h"
#include "metrics/access/bcrypt.h"

// Reads the web configuration of Prometheus' exporter-toolkit. Keys and values are the same, so
// that one file can serve several exporters.
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
    in->fault("client_ca_file",
              fmt::format("'client_ca_file' is not looked at with client_auth_type {}: use "
                          "RequireAndVerifyClientCert",
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
      in->faults()->add(in->document().fault_at(
          user.first, "a user's name has at least one character and no colon"));
    else if (const std::string fault = fault_of_bcrypt_hash(hash); !fault.empty())
      in->faults()->add(in->document().fault_at(
          user.second, fmt::format("the password of '{}' {}", name, fault)));
    else
      hash_by_user[name] = hash;
  }
  return hash_by_user;
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

}  // namespace lockstep::metrics
