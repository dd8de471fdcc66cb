#pragma once

#include <string>

#include "metrics/access/access.h"
#include "metrics/http/byte_stream.h"
#include "metrics/http/http_server.h"
#include "metrics/http/waiting_line.h"

namespace lockstep::metrics {

/// Who is at the other end of a connection.
struct HttpClient {
  std::string name;  ///< for the log and for who tries passwords: an address, "a Unix socket"
  bool has_opened_a_file =
      false;  ///< that of the Unix socket: only who may write to it can connect
};

/// What all connections of a server share.
struct HttpShared {
  const HttpOptions options;
  const HttpHandler handler;
  HttpObserver* const observer;
  Access* const access;
  WaitingLine* const line;
  int num_connections = 0;

  void rejected(Rejection reason) const {
    if (observer != nullptr) observer->on_rejected(reason);
  }
};

/// Reads requests of one connection, sees who asks, and answers, until the client closes it or is
/// cut off. Returns at once; the rest happens on the server's thread. `shared` must outlive the
/// connection, which lives as long as an operation of it is under way.
void serve_connection(ByteStream stream, HttpClient client, HttpShared& shared);

}  // namespace lockstep::metrics
