#pragma once

#include <cstdint>
#include <string>

#include "remote/credentials.h"
#include "remote/signature.h"

namespace lockstep::remote {

/// What a server said.
struct Answer {
  int64_t status = 0;
  Headers headers;
  std::string body;
};

/// Whether a transfer that failed with this code of libcurl may succeed when it is tried again.
bool is_passing_fault(int curl_code);

/// Sends the request, signed, over this thread's connection, and again after growing pauses while
/// the server is out of order (500, 502, 503, 504), asks for patience (429) or the connection
/// breaks, for files::StoreLimits::timeout_s in all. Any other status is the caller's. Throws
/// Error(kIo) that names `place` when the time is over, at once for what does not pass (a
/// certificate, more bytes than max_body_bytes).
Answer send(const Access& access, Request request, int64_t max_body_bytes,
            const std::string& place);

}  // namespace lockstep::remote
