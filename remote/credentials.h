#pragma once

#include <string>

namespace lockstep::remote {

/// Key of a store, with the provider's names of its parts. All empty: requests are not signed.
struct Credentials {
  std::string key_id, secret, session_token;
  std::string source;  ///< its origin, for messages, which never contain the values

  bool operator==(const Credentials&) const = default;
};

/// Address of a store and the credentials for it.
struct Access {
  Credentials credentials;
  std::string region;
  /// https://host[:port][/path]; empty: Amazon's own, by bucket and region.
  std::string endpoint;
  std::string hint;  ///< what to set if access is denied
};

/// Reads Amazon's variables and files.
/// * Key: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; else the profile AWS_PROFILE
///   (default: `default`) of AWS_SHARED_CREDENTIALS_FILE (default: ~/.aws/credentials).
/// * Region: AWS_REGION, AWS_DEFAULT_REGION, the profile's region in AWS_CONFIG_FILE
///   (~/.aws/config), else us-east-1.
/// * Endpoint: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL.
///
/// Throws Error(kConfig) for half a key and for a named profile that is missing. Throws it too for
/// an endpoint that is no URL, or has a password, query or percent sign.
Access amazon_access();

/// Reads the access to Google's XML interface with an HMAC key: GS_ACCESS_KEY_ID,
/// GS_SECRET_ACCESS_KEY, GS_ENDPOINT_URL. Throws as above.
Access google_access();

}  // namespace lockstep::remote
