#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::remote {

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
