// AWS Signature Version 4:
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
#include "remote/signature.h"

#include <array>

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/digest.h"

namespace lockstep::remote {
namespace {

/// Returns the HMAC-SHA-256, 32 bytes.
std::string hmac(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  unsigned int num_bytes = 0;
  ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(text.data()), text.size(), sum.data(), &num_bytes);
  return {reinterpret_cast<const char*>(sum.data()), num_bytes};
}

/// Returns lower-case hex digits.
std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

/// Returns the query, encoded and sorted by name.
std::string query_text(const Query& query) {
  std::string text;
  for (const auto& [name, value] : query)
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", percent_encoded(name, false),
                        percent_encoded(value, false));
  return text;
}

/// Formats a time in UTC.
std::string utc(std::time_t now, const char* format) {
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format, &parts)};
}

/// Returns the names of the headers, separated by semicolons.
std::string names_of(const Headers& headers) {
  std::string names;
  for (const auto& [name, value] : headers) names += (names.empty() ? "" : ";") + name;
  return names;
}

// The maps are sorted by name, as the canonical form requires.
std::string canonical_text(const Request& request, const std::string& body_sum) {
  std::string headers;
  for (const auto& [name, value] : request.headers) headers += name + ":" + value + "\n";
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, percent_encoded(request.path, true),
                     query_text(request.query), headers, names_of(request.headers), body_sum);
}

}  // namespace

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

void sign(const Credentials& credentials, const std::string& region, std::time_t now,
          Request* request) {
  if (credentials.key_id.empty()) return;
  const std::string day = utc(now, "%Y%m%d"), time = utc(now, "%Y%m%dT%H%M%SZ");
  // GET and HEAD have no body; its digest is signed nevertheless.
  const std::string body_sum = sha256_hex("");
  Headers& headers = request->headers;
  headers.erase("authorization");  // of an earlier try
  headers["x-amz-date"] = time;
  headers["x-amz-content-sha256"] = body_sum;
  if (!credentials.session_token.empty())
    headers["x-amz-security-token"] = credentials.session_token;
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", day, region);
  const std::string text = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope,
                                       sha256_hex(canonical_text(*request, body_sum)));
  // The signing key is derived from the secret for this day, region and service.
  const std::string key =
      hmac(hmac(hmac(hmac("AWS4" + credentials.secret, day), region), "s3"), "aws4_request");
  const std::string names = names_of(headers);
  headers["authorization"] =
      fmt::format("AWS4-HMAC-SHA256 Credential={}/{},SignedHeaders={},Signature={}",
                  credentials.key_id, scope, names, hex(hmac(key, text)));
}

}  // namespace lockstep::remote
