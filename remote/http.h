#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "remote/credentials.h"

/// HTTP: signed requests to stores, and messages to web servers.
namespace lockstep::remote {

/// Response of a server.
struct Answer {
  int64_t status = 0;
  Headers headers;
  std::string body;
};

/// True if a transfer that failed with this code of libcurl may succeed when repeated.
bool is_passing_fault(int curl_code);

/// Sends the request, signed, over a connection that is kept open. It repeats it after growing
/// pauses if the server fails (any 5xx but 501) or limits the rate (429). A write of the same file
/// at the same time (409) is repeated too. It is repeated too if the connection breaks. The limit
/// for all tries is files::StoreLimits::timeout_s. Any other status is returned. Throws Error(kIo)
/// with `place` on timeout, and at once for permanent faults (a certificate, more bytes than
/// max_body_bytes).
Answer send(const Access& access, Request request, int64_t max_body_bytes,
            const std::string& place);

/// Returns the body of a small page; nullopt for a status other than 200, or if there is no answer
/// in time. For services of this machine and its cloud, so proxies are not used. Thread-safe.
std::optional<std::string> fetch_page(const std::string& method, const std::string& url,
                                      const std::vector<std::string>& headers, double timeout_s);

/// Text that is sent to a web server by POST.
struct Message {
  std::string url;                        ///< http:// or https://
  std::vector<std::string> headers = {};  ///< "Content-Type: application/json"
  std::string body;
  std::string ca_file = {};  ///< PEM file of trusted certificates; empty: those of the system
  double timeout_s = 5;      ///< for the entire exchange
};

/// Sends a message once, without following redirects. Throws Error(kIo), with the start of the
/// server's answer, for a status other than 2xx. Throws it too if there is no answer in time.
/// Thread-safe.
void send_message(const Message& message);

}  // namespace lockstep::remote
