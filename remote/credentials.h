#pragma once

#include <string>

namespace lockstep::remote {

/// A key of a store, as its provider names the parts. All empty: requests are not signed.
struct Credentials {
  std::string key_id, secret, session_token;
  std::string source;  ///< where they were found, for messages; these never hold the values

  bool operator==(const Credentials&) const = default;
};

/// Where a store is and who asks.
struct Access {
  Credentials credentials;
  std::string region;
  /// https://host[:port][/path]; empty: Amazon's own, by bucket and region.
  std::string endpoint;
  std::string hint;  ///< what to set where access is denied
};

/// Amazon's variables and files: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, else
/// the profile AWS_PROFILE (default: `default`) of AWS_SHARED_CREDENTIALS_FILE (default:
/// ~/.aws/credentials); AWS_REGION, AWS_DEFAULT_REGION, the profile's region in AWS_CONFIG_FILE
/// (~/.aws/config), else us-east-1; AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL.
/// Throws Error(kConfig) for half a key, for an endpoint that is not a URL or holds a password, a
/// query or a percent sign, and for a profile that is named and not there.
Access amazon_access();

/// Google's XML interface with an HMAC key: GS_ACCESS_KEY_ID, GS_SECRET_ACCESS_KEY,
/// GS_ENDPOINT_URL. Throws as above.
Access google_access();

}  // namespace lockstep::remote
