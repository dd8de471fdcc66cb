#include "metrics/http/http_server.h"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/threads/signals_blocked.h"
#include "metrics/http/http_session.h"
#include "metrics/http/tls_context.h"

namespace lockstep::metrics {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::beast::error_code;

constexpr std::string_view kFullAnswer =
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
constexpr std::chrono::milliseconds kAcceptPause{100};  ///< when descriptors have run out

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

void require_protection(const tcp::endpoint& endpoint, const ListenAddress& listen,
                        const Access& access) {
  if (endpoint.address().is_loopback() || access.protects()) return;
  throw Error(ExitCode::kConfig, "metrics",
              fmt::format("others can reach {}: name a token_file, or a web_config with users or "
                          "TLS, or listen on 127.0.0.1",
                          listen.text()));
}

tcp::acceptor listen_at(asio::io_context& io, const HttpOptions& options, const Access& access) {
  tcp::endpoint endpoint = resolve(io, options.listen);
  require_protection(endpoint, options.listen, access);
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
      : access_(options.access),
        shared_{options, std::move(handler), observer, &access_},
        acceptor_(listen_at(io_, options, access_)),
        pause_(io_),
        address_{options.listen.host, acceptor_.local_endpoint().port()} {
    if (access_.config().tls) tls_.emplace(*access_.config().tls);
    accept();
    const SignalsBlocked inherited_by_the_thread;
    thread_ = std::jthread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "lockstep-http");
  }

  ~Impl() {
    io_.stop();
    thread_.join();
    // What these still look at belongs to sessions, which io_ drops with their sockets.
    access_.stop();
    if (shared_.options.later != nullptr) shared_.options.later->stop();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const ListenAddress& address() const { return address_; }
  bool is_tls() const { return tls_.has_value(); }

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
      return serve(PlainStream(std::move(socket)));
    }
    shared_.rejected(Rejection::kLimit);
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(kFullAnswer.data(), kFullAnswer.size()), ignored);
  }

  void serve(PlainStream stream) {
    if (!tls_)
      return std::make_shared<HttpSession<PlainStream>>(std::move(stream), shared_)->start();
    const std::shared_ptr<asio::ssl::context> context = tls_->get();
    std::make_shared<HttpSession<TlsStream>>(TlsStream(std::move(stream), *context), shared_,
                                             context)
        ->start();
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

  Access access_;
  std::optional<RenewedTlsContext> tls_;
  HttpShared shared_;  // outlives the sessions, which io_ owns, like the above
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

bool HttpServer::is_tls() const { return impl_->is_tls(); }

std::string HttpServer::origin() const {
  return (is_tls() ? "https://" : "http://") + address().text();
}

}  // namespace lockstep::metrics
