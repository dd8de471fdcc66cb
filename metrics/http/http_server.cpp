#include "metrics/http/http_server.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/resource.h>
#include <zlib.h>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/rfc7230.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "metrics/http/http_session.h"
#include "metrics/http/tls_stream.h"

// Listener and server, and compression of answers.
namespace lockstep::metrics {
namespace {

// zlib's fastest level.
constexpr int kFast = 1;
constexpr int kGzipWindow = 15 + 16;  // zlib's encoding of "with a gzip header"
constexpr int kMemoryLevel = 8;       // zlib's default

/// True for q=0, q=0.0, q=0.000: not accepted.
bool is_refused(const boost::beast::http::param_list& params) {
  for (const auto& [name, value] : params)
    if (name == "q") return value.find_first_not_of("0.") == value.npos;
  return false;
}

}  // namespace

bool accepts_gzip(std::string_view accept_encoding) {
  // A list of extensions has the same syntax: names, each with parameters.
  boost::beast::http::ext_list codings({accept_encoding.data(), accept_encoding.size()});
  const auto named = codings.find("gzip");
  const auto found = named != codings.end() ? named : codings.find("*");
  return found != codings.end() && !is_refused((*found).second);
}

std::string gzipped(std::string_view text) {
  z_stream stream{};
  // deflateBound(): the result fits, so one call of deflate() is enough.
  check(deflateInit2(&stream, kFast, Z_DEFLATED, kGzipWindow, kMemoryLevel, Z_DEFAULT_STRATEGY) ==
            Z_OK,
        "zlib has no memory");
  std::string result(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  const int code = deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  check(code == Z_STREAM_END, "zlib did not finish");
  return result;
}

/// Accepts the connections of one acceptor, up to the limit in the options, and passes each to
/// `serve`. All on the server's thread.
template <class Protocol>
class HttpListener {
 public:
  using Socket = boost::asio::basic_stream_socket<Protocol, IoExecutor>;
  using Acceptor = boost::asio::basic_socket_acceptor<Protocol, IoExecutor>;
  using error_code = boost::beast::error_code;

  /// `io` and `shared` must outlive the object.
  HttpListener(boost::asio::io_context& io, Acceptor acceptor, HttpShared& shared,
               std::function<void(Socket)> serve)
      : acceptor_(std::move(acceptor)), pause_(io), shared_(shared), serve_(std::move(serve)) {}

  void accept() {
    acceptor_.async_accept([this](error_code fault, Socket socket) {
      if (fault == boost::asio::error::operation_aborted) return;
      if (fault) return accept_after_a_pause();
      accept();  // before admit(): an exception there must not end the accept loop
      admit(std::move(socket));
    });
  }

 private:
  static constexpr std::string_view kFullAnswer =
      "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
  static constexpr std::chrono::milliseconds kAcceptPause{100};  ///< when no descriptor is free

  /// Waits before the next accept: without a free descriptor it would fail again immediately.
  void accept_after_a_pause() {
    shared_.rejected(Rejection::kLimit);
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](error_code fault) {
      if (!fault) accept();
    });
  }

  void admit(Socket socket) {
    if (shared_.num_connections < shared_.options.max_connections || shared_.silent.cut_one())
      return serve_(std::move(socket));
    error_code ignored;
    shared_.rejected(Rejection::kLimit);
    socket.non_blocking(true, ignored);
    socket.write_some(boost::asio::buffer(kFullAnswer.data(), kFullAnswer.size()), ignored);
  }

  Acceptor acceptor_;
  boost::asio::steady_timer pause_;
  HttpShared& shared_;
  const std::function<void(Socket)> serve_;
};

// One thread and one io_context serve all connections. The sessions (http_session.cpp) are
// asynchronous, so a slow client does not delay others.

namespace asio = boost::asio;
using asio::ip::tcp;
using Local = asio::local::stream_protocol;
using TcpAcceptor = HttpListener<tcp>::Acceptor;
using TcpSocket = HttpListener<tcp>::Socket;
using boost::beast::error_code;

static tcp::endpoint resolve(asio::io_context& io, const ListenAddress& listen) {
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

/// Opens, binds and listens; `fault` says what failed.
static TcpAcceptor open_acceptor(asio::io_context& io, const tcp::endpoint& endpoint,
                                 error_code* fault) {
  TcpAcceptor acceptor(io);
  acceptor.open(endpoint.protocol(), *fault);
  // Allows a restart while old connections are in TIME_WAIT.
  if (!*fault) acceptor.set_option(tcp::acceptor::reuse_address(true), *fault);
  if (!*fault) acceptor.set_option(tcp::no_delay(true), *fault);  // inherited by its connections
  if (!*fault) acceptor.bind(endpoint, *fault);
  if (!*fault) acceptor.listen(asio::socket_base::max_listen_connections, *fault);
  return acceptor;
}

/// Throws Error unless the address is loopback or the access is protected.
static void require_protection(const asio::ip::address& address, const ListenAddress& listen,
                               const Access& access) {
  if (address.is_loopback() || access.protects()) return;
  throw Error(
      ExitCode::kConfig, "metrics",
      fmt::format("{} is reachable from other hosts: name a token_file, or a web_config with users "
                  "or client_auth_type RequireAndVerifyClientCert, or listen on 127.0.0.1",
                  listen.text()));
}

/// Opens the acceptor, on another port if the requested one is taken and the options allow it.
static TcpAcceptor listen_at(asio::io_context& io, const HttpOptions& options,
                             const Access& access) {
  tcp::endpoint endpoint = resolve(io, options.listen);
  require_protection(endpoint.address(), options.listen, access);
  error_code fault;
  TcpAcceptor acceptor = open_acceptor(io, endpoint, &fault);
  // Two runs on one host have the same default port; the second one moves.
  if (fault == asio::error::address_in_use && options.fall_back_to_any_port) {
    endpoint.port(0);
    acceptor = open_acceptor(io, endpoint, &fault);
    if (!fault)
      log::warning("metrics", fmt::format("{} is in use; using port {} instead",
                                          options.listen.text(), acceptor.local_endpoint().port()));
  }
  if (fault)
    throw Error(ExitCode::kCannotCreate, "metrics",
                fmt::format("cannot listen on {}: {}; choose another metrics.listen",
                            options.listen.text(), fault.message()));
  return acceptor;
}

/// Limits connections to half of the process' descriptors. Without free descriptors, training could
/// not open a data file or a checkpoint.
static HttpOptions within_descriptors(HttpOptions options) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return options;
  const auto half = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur / 2, INT_MAX));
  options.max_connections = static_cast<int>(std::clamp<int64_t>(half, 1, options.max_connections));
  return options;
}

void check_http_options(const HttpOptions& options) {
  const Access access(options.access);
  if (access.config().tls) (void)make_tls_context(*access.config().tls);
  // Names are not resolved here; the server checks their addresses itself.
  error_code is_name;
  const auto address = asio::ip::make_address(options.listen.host, is_name);
  if (!is_name) require_protection(address, options.listen, access);
}

class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, HttpHandler handler, HttpObserver* observer)
      : access_(options.access),
        shared_{within_descriptors(options), std::move(handler), observer, &access_} {
    if (access_.config().tls) tls_.emplace(*access_.config().tls);
    if (options.socket_path.empty())
      open_tcp();
    else
      open_local();
    // The thread inherits the mask, so it never handles the run's signals.
    const SignalsBlocked inherited_by_the_thread;
    thread_ = std::jthread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(),
                         options.socket_path.empty() ? "lockstep-http" : "lockstep-ctl");
  }

  ~Impl() {
    // Pending operations are dropped, so that slow clients cannot delay the end.
    io_.stop();
    thread_.join();
    // Their remaining callbacks refer to sessions, which io_ destroys with their sockets.
    access_.stop();
    if (shared_.options.later != nullptr) shared_.options.later->stop();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const ListenAddress& address() const { return address_; }
  bool is_tls() const { return tls_.has_value(); }
  std::string origin() const {
    if (socket_) return "unix:" + socket_->path().string();
    return (is_tls() ? "https://" : "http://") + address_.text();
  }

 private:
  void open_tcp() {
    TcpAcceptor acceptor = listen_at(io_, shared_.options, access_);
    address_ = {shared_.options.listen.host, acceptor.local_endpoint().port()};
    tcp_.emplace(io_, std::move(acceptor), shared_,
                 [this](TcpSocket socket) { serve(std::move(socket)); });
    tcp_->accept();
  }

  void open_local() {
    socket_.emplace(shared_.options.socket_path);
    local_.emplace(io_, HttpListener<Local>::Acceptor(io_, Local(), socket_->release()), shared_,
                   [this](HttpListener<Local>::Socket socket) {
                     serve_connection({TimedSocket(std::move(socket)), nullptr},
                                      {.name = "a Unix socket", .has_opened_a_file = true},
                                      shared_);
                   });
    local_->accept();
  }

  void serve(TcpSocket socket) {
    error_code ignored;
    std::string client = socket.remote_endpoint(ignored).address().to_string();
    // Each connection gets the current certificate.
    serve_connection({TimedSocket(std::move(socket)), tls_ ? tls_->get() : nullptr},
                     {.name = std::move(client)}, shared_);
  }

  /// Runs the thread. A request must never end the training: exceptions are logged, and serving
  /// continues.
  void run() {
    while (!io_.stopped()) {
      try {
        io_.run();
      } catch (const std::exception& fault) {
        log::error("metrics", fmt::format("the HTTP server continues after: {}", fault.what()));
      }
    }
  }

  Access access_;
  std::optional<RenewedTlsContext> tls_;
  HttpShared shared_;  // used by sessions, which io_ owns, so declared before io_
  asio::io_context io_{1};
  ListenAddress address_;
  std::optional<UnixSocket> socket_;
  std::optional<HttpListener<tcp>> tcp_;  // either this or local_
  std::optional<HttpListener<Local>> local_;
  std::jthread thread_;  // declared last: joined first
};

HttpServer::HttpServer(const HttpOptions& options, HttpHandler handler, HttpObserver* observer)
    : impl_(std::make_unique<Impl>(options, std::move(handler), observer)) {}

HttpServer::~HttpServer() = default;

const ListenAddress& HttpServer::address() const { return impl_->address(); }

bool HttpServer::is_tls() const { return impl_->is_tls(); }

std::string HttpServer::origin() const { return impl_->origin(); }

}  // namespace lockstep::metrics
