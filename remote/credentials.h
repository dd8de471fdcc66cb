#pragma once

#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <vector>

/// Credentials of stores, and signatures of requests.
namespace lockstep::remote {

/// Key of a store, with the provider's names of its parts. All empty: requests are not signed.
struct Credentials {
  std::string key_id, secret, session_token;
  std::string source;         ///< its origin, for messages, which never contain the values
  std::string bearer = {};    ///< token that is sent instead of a signature; empty: none
  std::time_t expires_s = 0;  ///< seconds since 1970; 0: unknown

  bool operator==(const Credentials&) const = default;
};

/// Returns an environment variable; empty if it is not set.
std::string variable(const char* name);

/// Address of a store and the credentials for it.
struct Access {
  Credentials credentials;
  std::string region;
  /// https://host[:port][/path]; empty: Amazon's own, by bucket and region.
  std::string endpoint;
  std::string hint;        ///< what to set if access is denied
  bool is_google = false;  ///< headers and signatures have Google's names
};

/// Reads Amazon's variables and files.
/// * Key: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; else the profile AWS_PROFILE
///   (default: `default`) of AWS_SHARED_CREDENTIALS_FILE (default: ~/.aws/credentials); else the
///   first role that this process has:
///   - a container's (ECS, EKS Pod Identity): AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI,
///     with AWS_CONTAINER_AUTHORIZATION_TOKEN or ..._TOKEN_FILE;
///   - a Kubernetes service account's (IRSA): AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, from
///     AWS_ENDPOINT_URL_STS or the region's own STS;
///   - the machine's (EC2, IMDSv2), unless AWS_EC2_METADATA_DISABLED is true;
///     AWS_EC2_METADATA_SERVICE_ENDPOINT replaces its address.
/// * Region: AWS_REGION, AWS_DEFAULT_REGION, the profile's region in AWS_CONFIG_FILE
///   (~/.aws/config), else us-east-1.
/// * Endpoint: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL.
///
/// Throws Error(kConfig) for half a key, and for a named profile or role that gives none. Throws it
/// too for an endpoint that is no URL, or has a password, query or percent sign.
Access amazon_access();

/// Reads the access to Google's XML interface with an HMAC key: GS_ACCESS_KEY_ID,
/// GS_SECRET_ACCESS_KEY, GS_ENDPOINT_URL. Without a key the service account of this machine counts
/// (GCE_METADATA_HOST). Throws as above.
Access google_access();

/// Headers with names in lower case, sorted.
using Headers = std::map<std::string, std::string>;
/// Parameters of a query, decoded, sorted.
using Query = std::map<std::string, std::string>;

/// Request to a store.
struct Request {
  std::string method = "GET";
  std::string origin;  ///< https://host[:port]
  std::string path;    ///< decoded, begins with a slash
  Query query;
  Headers headers;                          ///< those to sign, including `host`
  std::vector<std::string_view> body = {};  ///< its bytes are those of all texts

  int64_t body_bytes() const;
  /// Returns the URL with path and query encoded.
  std::string url() const;
};

/// Encodes as in RFC 3986: every byte except letters, digits and -._~ becomes %XX. Slashes are kept
/// on request.
std::string percent_encoded(std::string_view text, bool keeps_slashes);

/// Adds the headers of a signature by AWS Signature Version 4 for the service `s3`, or by Google's
/// V4 form of it. None for empty credentials; a bearer token is sent as it is. The digest of a body
/// is signed up to 1 MiB. Larger ones need a checksum among the headers. `now`: seconds since 1970.
void sign(const Access& access, std::time_t now, Request* request);

}  // namespace lockstep::remote
