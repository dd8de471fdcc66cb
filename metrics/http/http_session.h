#pragma once

#include <functional>
#include <list>
#include <string>

#include "metrics/http/access.h"
#include "metrics/http/http_server.h"
#include "metrics/http/tls_stream.h"

namespace lockstep::metrics {

/// Client of a connection.
struct HttpClient {
  std::string name;  ///< for the log and the password limits: an address, "a Unix socket"
  bool has_opened_a_file =
      false;  ///< that of the Unix socket: only users who may write to it can connect
};

/// Connections that wait for a request. If all places are taken, the one that waits longest is
/// closed; those that never sent a request come first. So silent clients cannot lock out others.
class SilentConnections {
 public:
  using Cut = std::function<void()>;
  struct Place {
    bool has_asked = false;
    std::list<Cut>::iterator at;
  };

  /// Adds a connection. `cut` ends it, and calls remove() first.
  Place add(bool has_asked, Cut cut) {
    std::list<Cut>& all = has_asked ? idle_ : new_;
    return {has_asked, all.insert(all.end(), std::move(cut))};
  }
  void remove(const Place& place) { (place.has_asked ? idle_ : new_).erase(place.at); }
  /// Closes the connection that waits longest. Returns false if there is none.
  bool cut_one() {
    const std::list<Cut>& all = new_.empty() ? idle_ : new_;
    if (all.empty()) return false;
    const Cut cut = all.front();
    cut();
    return true;
  }

 private:
  std::list<Cut> new_, idle_;
};

/// State that all connections of a server share.
struct HttpShared {
  const HttpOptions options;
  const HttpHandler handler;
  HttpObserver* const observer;
  Access* const access;
  int num_connections = 0;
  SilentConnections silent = {};

  void rejected(Rejection reason) const {
    if (observer != nullptr) observer->on_rejected(reason);
  }
};

/// Serves one connection: reads requests, checks credentials and answers, until the client closes
/// it or is cut off. Returns at once; the work is done on the server's thread. `shared` must
/// outlive the connection, which lives as long as one of its operations is pending.
void serve_connection(ByteStream stream, HttpClient client, HttpShared& shared);

}  // namespace lockstep::metrics
