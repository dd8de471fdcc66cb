#pragma once

#include <chrono>
#include <functional>
#include <string_view>
#include <utility>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "metrics/http/http_session.h"

namespace lockstep::metrics {

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

}  // namespace lockstep::metrics
