#pragma once

#include <ctime>
#include <map>
#include <string>
#include <string_view>

#include "remote/credentials.h"

namespace lockstep::remote {

/// Headers with names in lower case, sorted.
using Headers = std::map<std::string, std::string>;
/// Parameters of a query, decoded, sorted.
using Query = std::map<std::string, std::string>;

/// GET or HEAD request without a body.
struct Request {
  std::string method = "GET";
  std::string origin;  ///< https://host[:port]
  std::string path;    ///< decoded, begins with a slash
  Query query;
  Headers headers;  ///< those to sign, including `host`

  /// Returns the URL with path and query encoded.
  std::string url() const;
};

/// Encodes as in RFC 3986: every byte except letters, digits and -._~ becomes %XX. Slashes are kept
/// on request.
std::string percent_encoded(std::string_view text, bool keeps_slashes);

/// Adds the headers of a signature by AWS Signature Version 4 for the service `s3`; none for empty
/// credentials. `now`: seconds since 1970.
void sign(const Credentials& credentials, const std::string& region, std::time_t now,
          Request* request);

}  // namespace lockstep::remote
