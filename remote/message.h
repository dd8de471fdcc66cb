#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::remote {

/// Text that a web server receives by POST.
struct Message {
  std::string url;                        ///< http:// or https://
  std::vector<std::string> headers = {};  ///< "Content-Type: application/json"
  std::string body;
  std::string ca_file = {};  ///< PEM, whom to trust; empty: whom the system trusts
  double timeout_s = 5;      ///< for all of it
};

/// Sends it once, with no redirect followed. Throws Error(kIo), with the server's first words, for
/// an answer other than 2xx, and if there is none in time. Any thread.
void send_message(const Message& message);

}  // namespace lockstep::remote
