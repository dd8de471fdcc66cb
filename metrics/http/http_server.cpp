#include "metrics/http/http_server.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/process/signals_blocked.h"
#include "metrics/http/gzip.h"

namespace lockstep::metrics {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using beast::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kFullAnswer =
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
constexpr size_t kDrainLimitBytes =
    64 * 1024;  ///< read after a refusal, so that the client gets to see the answer
constexpr size_t kWorthPacking = 1024;  ///< a smaller body fits into one packet anyway
constexpr std::chrono::seconds kDrainTime{1};
constexpr std::chrono::milliseconds kAcceptPause{100};  ///< when descriptors have run out

/// A body that is received and thrown away: memory does not grow with what a client sends.
struct DiscardedBody {
  struct value_type {};  // NOLINT(readability-identifier-naming): Beast's names
  class reader {         // NOLINT(readability-identifier-naming)
   public:
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>&, value_type&) {}
    void init(const boost::optional<uint64_t>&, error_code& fault) { fault = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& fault) {
      fault = {};
      return beast::buffer_bytes(buffers);
    }
    void finish(error_code& fault) { fault = {}; }
  };
};

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(value));
}

HttpResponse plain(int status, std::string text) {
  return {status, "text/plain; charset=utf-8", std::move(text), "other"};
}

/// A page of a browser can send no such header unasked, nor, under a name of its own that it made
/// to mean this host, hide that name.
template <typename Request>
bool is_no_browser(const Request& request) {
  if (request["X-Lockstep-Control"].empty()) return false;
  const auto field = request[http::field::host];
  const auto host = parse_listen_address(std::string(field.data(), field.size()) + ":0");
  const auto with_port = parse_listen_address({field.data(), field.size()});
  const std::string name = with_port ? with_port->host : host ? host->host : "";
  error_code is_a_name;
  (void)asio::ip::make_address(name, is_a_name);
  return name == "localhost" || !is_a_name;
}

/// What all connections share.
struct Shared {
  const HttpOptions options;
  const HttpHandler handler;
  HttpObserver* const observer;
  int num_connections = 0;

  void rejected(Rejection reason) const {
    if (observer != nullptr) observer->on_rejected(reason);
  }
};

/// One connection: read a request, answer it, and again. Lives as long as an operation of it is
/// under way.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Shared& shared)
      : stream_(std::move(socket)),
        buffer_(shared.options.header_limit_bytes + 8 * 1024),
        shared_(shared) {
    ++shared_.num_connections;
  }
  ~Session() { --shared_.num_connections; }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The time limit holds for the whole request: a client that sends a byte a second is cut all the
  /// same.
  void read() {
    parser_.emplace();
    parser_->header_limit(shared_.options.header_limit_bytes);
    parser_->body_limit(shared_.options.body_limit_bytes);
    stream_.expires_after(seconds(shared_.options.timeout_s));
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](error_code fault, size_t) { self->on_header(fault); });
  }

 private:
  void on_header(error_code fault) {
    start_ = Clock::now();
    if (fault) return on_read_fault(fault);
    const http::verb method = parser_->get().method();
    const bool is_post = method == http::verb::post && shared_.options.post;
    if (!is_post && method != http::verb::get && method != http::verb::head)
      return refuse(plain(405, "only GET and HEAD are served here\n"));
    if (is_post && !is_no_browser(parser_->get()))
      return refuse(plain(403,
                          "a POST needs the header X-Lockstep-Control: 1, and this host's "
                          "number or localhost as its host\n"));
    if (parser_->is_done()) return answer();
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](error_code body_fault, size_t) {
                       if (body_fault) return self->on_read_fault(body_fault);
                       self->answer();
                     });
  }

  void on_read_fault(error_code fault) {
    if (fault == beast::error::timeout) {
      const bool idle_after_an_answer = num_answers_ > 0 && !parser_->got_some();
      if (!idle_after_an_answer) shared_.rejected(Rejection::kTimeout);
    } else if (fault == http::error::body_limit) {
      shared_.rejected(Rejection::kBody);
      refuse(plain(413, "the body is too large\n"));
    } else if (fault == http::error::header_limit || fault == http::error::buffer_overflow) {
      shared_.rejected(Rejection::kHeader);
      refuse(plain(431, "the header is too large\n"));
    } else if (fault != http::error::end_of_stream && fault != http::error::partial_message &&
               fault.category() == http::make_error_code(http::error::bad_method).category()) {
      shared_.rejected(Rejection::kHeader);
      refuse(plain(400, "this is not an HTTP request\n"));
    }  // else the client has gone
  }

  void answer() {
    const auto target = parser_->get().target();
    HttpResponse response;
    try {
      const bool is_post = parser_->get().method() == http::verb::post;
      const HttpHandler& handler = is_post ? shared_.options.post : shared_.handler;
      response = handler({target.data(), target.size()});
    } catch (const std::exception& fault) {
      log::error("metrics", fmt::format("an HTTP request failed: {}", fault.what()));
      response = plain(500, "this page could not be made; the log says why\n");
    }
    write(std::move(response), parser_->keep_alive());
  }

  void refuse(HttpResponse response) { write(std::move(response), false); }

  void write(HttpResponse response, bool keep_alive) {
    route_ = std::move(response.route);
    message_.emplace(static_cast<http::status>(response.status), 11);
    message_->set(http::field::content_type, response.content_type);
    message_->set(http::field::cache_control, "no-store");
    message_->set("X-Content-Type-Options", "nosniff");
    if (!response.readable_from.empty())
      message_->set(http::field::access_control_allow_origin, response.readable_from);
    if (response.status == 405) message_->set(http::field::allow, "GET, HEAD");
    if (response.body.size() >= kWorthPacking) pack(&response.body);
    message_->content_length(response.body.size());
    message_->keep_alive(keep_alive);
    if (parser_->get().method() != http::verb::head) message_->body() = std::move(response.body);
    stream_.expires_after(seconds(shared_.options.timeout_s));
    http::async_write(stream_, *message_,
                      [self = shared_from_this(), keep_alive](error_code fault, size_t) {
                        self->on_written(fault, keep_alive);
                      });
  }

  /// gzip, if the client asked for it.
  void pack(std::string* body) {
    message_->set(http::field::vary, "Accept-Encoding");
    const auto asked = parser_->get()[http::field::accept_encoding];
    if (!accepts_gzip({asked.data(), asked.size()})) return;
    *body = gzipped(*body);
    message_->set(http::field::content_encoding, "gzip");
  }

  void on_written(error_code fault, bool keep_alive) {
    if (fault == beast::error::timeout) shared_.rejected(Rejection::kTimeout);
    if (fault) return;
    ++num_answers_;
    const double duration_s = std::chrono::duration<double>(Clock::now() - start_).count();
    if (shared_.observer != nullptr)
      shared_.observer->on_answer(route_, message_->result_int(), duration_s);
    message_.reset();
    if (keep_alive) return read();
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(kDrainTime);
    drain(0);
  }

  /// Closing with unread bytes would reset the connection, and the client would lose the answer.
  void drain(size_t num_drained) {
    buffer_.clear();
    if (num_drained > kDrainLimitBytes) return;
    stream_.async_read_some(buffer_.prepare(8 * 1024), [self = shared_from_this(), num_drained](
                                                           error_code fault, size_t num_bytes) {
      if (!fault) self->drain(num_drained + num_bytes);
    });
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  Shared& shared_;
  std::optional<http::request_parser<DiscardedBody>> parser_;
  std::optional<http::response<http::string_body>> message_;
  std::string route_;
  Clock::time_point start_;
  int64_t num_answers_ = 0;
};

tcp::endpoint resolve(asio::io_context& io, const ListenAddress& listen) {
  error_code fault;
  const auto found =
      tcp::resolver(io).resolve(listen.host, std::to_string(listen.port),
                                tcp::resolver::passive | tcp::resolver::numeric_service, fault);
  if (fault || found.empty())
    throw Error(
        ExitCode::kConfig, "metrics",
        fmt::format("metrics.listen: '{}' has no address: {}", listen.host, fault.message()));
  return found.begin()->endpoint();
}

/// Opened, bound and listening; `fault` says what failed.
tcp::acceptor open_acceptor(asio::io_context& io, const tcp::endpoint& endpoint,
                            error_code* fault) {
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), *fault);
  if (!*fault)
    acceptor.set_option(tcp::acceptor::reuse_address(true), *fault);  // past a TIME_WAIT of our own
  if (!*fault) acceptor.bind(endpoint, *fault);
  if (!*fault) acceptor.listen(asio::socket_base::max_listen_connections, *fault);
  return acceptor;
}

tcp::acceptor listen_at(asio::io_context& io, const HttpOptions& options) {
  tcp::endpoint endpoint = resolve(io, options.listen);
  error_code fault;
  tcp::acceptor acceptor = open_acceptor(io, endpoint, &fault);
  if (fault == asio::error::address_in_use && options.fall_back_to_any_port) {
    endpoint.port(0);
    acceptor = open_acceptor(io, endpoint, &fault);
    if (!fault)
      log::warning("metrics", fmt::format("{} is taken, port {} is used instead",
                                          options.listen.text(), acceptor.local_endpoint().port()));
  }
  if (fault)
    throw Error(ExitCode::kCannotCreate, "metrics",
                fmt::format("cannot listen on {}: {}; choose another metrics.listen",
                            options.listen.text(), fault.message()));
  return acceptor;
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, HttpHandler handler, HttpObserver* observer)
      : shared_{options, std::move(handler), observer},
        acceptor_(listen_at(io_, options)),
        pause_(io_),
        address_{options.listen.host, acceptor_.local_endpoint().port()} {
    accept();
    const SignalsBlocked inherited_by_the_thread;
    thread_ = std::jthread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "lockstep-http");
  }

  ~Impl() {
    io_.stop();
  }  // then the thread is joined, then io_ drops the sessions with their sockets
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const ListenAddress& address() const { return address_; }

 private:
  void accept() {
    acceptor_.async_accept([this](error_code fault, tcp::socket socket) {
      if (fault == asio::error::operation_aborted) return;
      if (fault) return accept_after_a_pause();
      accept();  // first: what admit() throws must not end the serving
      admit(std::move(socket));
    });
  }

  /// Without a free descriptor accept() fails at once, again and again.
  void accept_after_a_pause() {
    shared_.rejected(Rejection::kLimit);
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](error_code fault) {
      if (!fault) accept();
    });
  }

  void admit(tcp::socket socket) {
    error_code ignored;
    if (shared_.num_connections < shared_.options.max_connections) {
      socket.set_option(tcp::no_delay(true), ignored);
      return std::make_shared<Session>(std::move(socket), shared_)->read();
    }
    shared_.rejected(Rejection::kLimit);
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(kFullAnswer.data(), kFullAnswer.size()), ignored);
  }

  /// A scrape must never end the training: what is thrown here is logged, and serving goes on.
  void run() {
    while (!io_.stopped()) {
      try {
        io_.run();
      } catch (const std::exception& fault) {
        log::error("metrics", fmt::format("the HTTP server goes on after: {}", fault.what()));
      }
    }
  }

  Shared shared_;  // outlives the sessions, which io_ owns
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  ListenAddress address_;
  std::jthread thread_;  // last: joined first
};

HttpServer::HttpServer(const HttpOptions& options, HttpHandler handler, HttpObserver* observer)
    : impl_(std::make_unique<Impl>(options, std::move(handler), observer)) {}

HttpServer::~HttpServer() = default;

const ListenAddress& HttpServer::address() const { return impl_->address(); }

}  // namespace lockstep::metrics
