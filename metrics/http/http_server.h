#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "metrics/http/access.h"
#include "metrics/http/listen_address.h"

/// HTTP server for probes, scrapes and control calls, and compression of its answers.
namespace lockstep::metrics {

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::string route = "other";     ///< for counters: the route's own name, never the client's text
  std::string readable_from = {};  ///< origin whose pages may read this too: "http://n1:9464"
};

/// Request to a handler. Converts from and to its target, since most handlers need no more.
struct HttpRequest {
  // NOLINTBEGIN(google-explicit-constructor): meant to convert
  HttpRequest(std::string_view target_sent, std::string_view accept_sent = {})
      : target(target_sent), accept(accept_sent) {}
  HttpRequest(const char* target_sent) : target(target_sent) {}
  operator std::string_view() const { return target; }
  // NOLINTEND(google-explicit-constructor)

  std::string_view target;  ///< path and query as sent
  std::string_view accept;  ///< the header Accept; empty if absent
};

/// Answers a GET. Runs on the server's thread, one call at a time, and should take milliseconds. An
/// exception becomes a plain 500.
using HttpHandler = std::function<HttpResponse(const HttpRequest& request)>;

/// Receives an answer, once, on any thread.
using Reply = std::function<void(HttpResponse)>;

/// Answers GETs that depend on other processes, without blocking the server's thread.
class LaterHandler {
 public:
  virtual ~LaterHandler() = default;
  /// Returns true if it answers, now or later. Otherwise the server's HttpHandler answers.
  /// Runs on the server's thread.
  virtual bool ask(const HttpRequest& request, const Reply& reply) = 0;
  /// Ends the answers: no reply is called or kept afterwards, and ask() is not called again.
  virtual void stop() = 0;
};

enum class Rejection { kLimit, kTimeout, kHeader, kBody, kCredentials, kTls };

/// Request as the client sent it: for a log, never for a counter's label.
struct HttpCall {
  std::string_view method, target;  ///< empty if the request was unreadable so far
  std::string client;               ///< "10.0.0.7", "a Unix socket"
  int status = 0;                   ///< of the answer
};

/// Observer of every answer and every rejection, on the server's thread.
class HttpObserver {
 public:
  virtual ~HttpObserver() = default;
  /// Called before an answer is sent; the client may be gone.
  virtual void on_call(const HttpCall& /*call*/) {}
  /// Called after an answer was sent.
  virtual void on_answer(std::string_view route, int status, double duration_s) = 0;
  virtual void on_rejected(Rejection reason) = 0;
};

struct HttpOptions {
  ListenAddress listen{"127.0.0.1", 9464};
  std::string socket_path = {};        ///< listens on this Unix socket instead, for this user only
  AccessOptions access = {};           ///< required if `listen` is not loopback
  bool fall_back_to_any_port = false;  ///< if the requested port is taken
  uint32_t header_limit_bytes = 8 * 1024;
  uint64_t body_limit_bytes = 64 * 1024;  ///< a body is read and discarded
  double timeout_s = 5;       ///< to receive a request; to send an answer; to stay idle in between
  int max_connections = 512;  ///< also limited to half of the process' descriptors
  /// Answers POST, as the other handler answers GET; empty: 405. Bodies are discarded. Only
  /// requests that no web page in a browser can make are passed on. They have a header
  /// X-Lockstep-Control and address this host by number or as localhost (by any name if credentials
  /// are required). All others get 403.
  HttpHandler post = {};
  LaterHandler* later = nullptr;  ///< may be null; must outlive the server
};

/// Throws what HttpServer would throw for these options before it listens: for missing or faulty
/// files, and for an unprotected address that others can reach. Does not resolve host names.
void check_http_options(const HttpOptions& options);

/// HTTP/1.1 server for probes, scrapes and control calls: GET, HEAD, POST, keep-alive, TLS, gzip on
/// request. It runs on its own thread, which receives no signals. A second thread compares
/// passwords. Limits bound the memory per connection. Misbehaving clients are cut off:
///
///   401       no credentials
///   405       other methods
///   413, 431  body or header above the limit
///   421       a name that is not this host's, if no credentials are required
///   429       others' credentials are being checked
///   503       all connections are busy with requests; the connection is closed
///   none      the time limit has expired; the connection is closed
///
/// Before a 503, a connection that waits for its request is closed to make room.
class HttpServer {
 public:
  /// Listens when it returns. `observer` may be null. `observer` and all that `handler` refers to
  /// must outlive the server. Throws Error(kConfig) if the host has no address, or if others can
  /// reach an unprotected one. Throws as Access, make_tls_context() and UnixSocket do. Throws
  /// Error(kCannotCreate) if it cannot listen on the address.
  HttpServer(const HttpOptions& options, HttpHandler handler, HttpObserver* observer);
  /// Closes every connection, however slow. Waits only for a running handler.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Returns the address with the actual port; meaningless for a Unix socket.
  const ListenAddress& address() const;
  /// Returns "https://127.0.0.1:9464" or "unix:runs/digits/control.sock".
  std::string origin() const;
  bool is_tls() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// True if a client with this Accept-Encoding accepts gzip: "gzip", "deflate, gzip;q=0.5", "*".
/// False for "", "gzip;q=0", "identity".
bool accepts_gzip(std::string_view accept_encoding);

/// Compresses a text as a gzip file (RFC 1952), fast rather than small. A page of metrics takes a
/// tenth of a millisecond and shrinks to about a tenth. Throws Error(kBug) if zlib fails.
std::string gzipped(std::string_view text);

}  // namespace lockstep::metrics
