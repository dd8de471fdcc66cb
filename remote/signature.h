#pragma once

#include <ctime>
#include <map>
#include <string>
#include <string_view>

#include "remote/credentials.h"

namespace lockstep::remote {

/// Names in lower case, sorted.
using Headers = std::map<std::string, std::string>;
/// Parameters of a query, decoded, sorted.
using Query = std::map<std::string, std::string>;

/// A GET or HEAD without a body.
struct Request {
  std::string method = "GET";
  std::string origin;  ///< https://host[:port]
  std::string path;    ///< decoded, begins with a slash
  Query query;
  Headers headers;  ///< those that are signed, `host` among them

  /// With path and query encoded.
  std::string url() const;
};

/// As RFC 3986 has it: all but letters, digits and -._~ becomes %XX; slashes stay if asked for.
std::string percent_encoded(std::string_view text, bool keeps_slashes);

/// Adds the headers of a signature, AWS Signature Version 4 for the service `s3`; nothing for empty
/// credentials. `now`: seconds since 1970.
void sign(const Credentials& credentials, const std::string& region, std::time_t now,
          Request* request);

}  // namespace lockstep::remote
