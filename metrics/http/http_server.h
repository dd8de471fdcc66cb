#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "metrics/access/access.h"
#include "metrics/http/listen_address.h"

namespace lockstep::metrics {

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::string route = "other";  ///< for counters: the route's own name, never what the client sent
  std::string readable_from = {};  ///< "http://n1:9464": a page of that origin may read this too
};

/// Answers a GET for `target` (path and query as sent). Runs on the server's thread, one call at a
/// time; should take milliseconds. What it throws becomes a plain 500.
using HttpHandler = std::function<HttpResponse(std::string_view target)>;

/// Takes an answer, once, on any thread.
using Reply = std::function<void(HttpResponse)>;

/// Answers GETs that need what others say, without keeping the server's thread.
class LaterHandler {
 public:
  virtual ~LaterHandler() = default;
  /// Whether it answers `target`, later or at once; else the server's HttpHandler does. Runs on
  /// the server's thread.
  virtual bool ask(std::string_view target, const Reply& reply) = 0;
  /// No reply is given, and none kept, after it; ask() is not called again.
  virtual void stop() = 0;
};

enum class Rejection { kLimit, kTimeout, kHeader, kBody, kCredentials, kTls };

/// A request as the client sent it: for a log, never for a counter's label.
struct HttpCall {
  std::string_view method, target;  ///< empty where the request could not be read so far
  std::string client;               ///< "10.0.0.7", "a Unix socket"
  int status = 0;                   ///< of the answer
};

/// Hears of every answer and every refusal, on the server's thread.
class HttpObserver {
 public:
  virtual ~HttpObserver() = default;
  /// An answer is about to be sent; the client may have gone.
  virtual void on_call(const HttpCall& /*call*/) {}
  /// An answer has been sent.
  virtual void on_answer(std::string_view route, int status, double duration_s) = 0;
  virtual void on_rejected(Rejection reason) = 0;
};

struct HttpOptions {
  ListenAddress listen{"127.0.0.1", 9464};
  std::string socket_path = {};        ///< listens on this Unix socket instead, for this user alone
  AccessOptions access = {};           ///< needed where `listen` is not loopback
  bool fall_back_to_any_port = false;  ///< if the wanted port is taken
  uint32_t header_limit_bytes = 8 * 1024;
  uint64_t body_limit_bytes = 64 * 1024;  ///< a body is read and thrown away
  double timeout_s =
      5;  ///< to receive one whole request; to send one whole answer; to stay idle in between
  int max_connections = 512;  ///< and half of the descriptors that the process may have
  /// Answers POST, as the other handler GET; empty: 405. Only requests that no page of a browser
  /// can make come here: those with a header X-Lockstep-Control, to this host by its number or as
  /// localhost (by any name where credentials are asked for); the others get 403. Their bodies are
  /// thrown away.
  HttpHandler post = {};
  LaterHandler* later = nullptr;  ///< may be null; must outlive the server
};

/// Throws what HttpServer would throw of these options before it listens: files that are missing or
/// faulty, an address that others can reach and nothing protects. Host names are not looked up.
void check_http_options(const HttpOptions& options);

/// A small HTTP/1.1 server for probes, scrapes and calls: GET, HEAD, POST, keep-alive, TLS, gzip
/// where it is asked for, on one thread of its own that takes no signals; passwords are compared on
/// a second one. Hostile clients are cut, not served: 401 without credentials, 429 while others'
/// are looked at, 431 or 413 above a limit, 405 for other methods, 421 under a name that
/// is not this host's where no credentials are asked for, 503 and a closed connection when all
/// places are taken by requests (one that waits for its request makes room), silence after the time
/// limit. Memory per connection is bounded by the limits.
class HttpServer {
 public:
  /// Listens when it returns. `observer` may be null; it and what `handler` refers to must outlive
  /// the server. Throws Error(kConfig) if the host has no address, or one that others reach and
  /// nothing protects, or for what Access and make_tls_context() refuse; Error(kCannotCreate) if
  /// the address cannot be listened on, or for what UnixSocket refuses.
  HttpServer(const HttpOptions& options, HttpHandler handler, HttpObserver* observer);
  /// Closes every connection, however slow; waits only for a handler under way.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Where it listens, with the real port; without a meaning for a Unix socket.
  const ListenAddress& address() const;
  /// "https://127.0.0.1:9464", "unix:runs/digits/control.sock"
  std::string origin() const;
  bool is_tls() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::metrics
