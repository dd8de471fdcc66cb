#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>

#include "metrics/http/access.h"

/// Connections of the HTTP server, plain or TLS, and the TLS context.
namespace lockstep::metrics {

/// Creates a server's TLS context: certificate, versions, required client certificates. Throws
/// Error(kConfig) with the file and OpenSSL's message.
boost::asio::ssl::context make_tls_context(const TlsOptions& options);

/// TLS context that follows its files, since certificates are renewed during a run.
class RenewedTlsContext {
 public:
  /// Throws as make_tls_context().
  explicit RenewedTlsContext(TlsOptions options);

  /// Returns a context of the current files. Returns the previous one if the files have not changed
  /// or are not usable; the latter is logged.
  std::shared_ptr<boost::asio::ssl::context> get();

 private:
  std::vector<std::filesystem::file_time_type> times_of_files() const;

  const TlsOptions options_;
  std::vector<std::filesystem::file_time_type> times_;
  std::shared_ptr<boost::asio::ssl::context> context_;
};

/// Executor of sockets that know their io_context by type, which is cheaper than any_io_executor.
using IoExecutor = boost::asio::io_context::executor_type;
/// TCP or Unix socket with time limits.
using TimedSocket = boost::beast::basic_stream<boost::asio::generic::stream_protocol, IoExecutor>;

/// Byte stream of one connection, plain or TLS: an AsyncStream for Asio. A single type, so that
/// code which reads and writes HTTP is compiled once. A read fills only the first buffer.
/// Completions run on the thread of the io_context, never inside the call.
class ByteStream {
 public:
  using error_code = boost::beast::error_code;
  using executor_type = IoExecutor;
  using Done = std::function<void(error_code, size_t)>;

  /// `tls`: null for a plain connection. It is kept as long as the connection, since later
  /// connections may use a renewed certificate.
  ByteStream(TimedSocket socket, std::shared_ptr<boost::asio::ssl::context> tls);

  executor_type get_executor() { return socket_->get_executor(); }
  TimedSocket& timed_socket() { return *socket_; }
  bool is_tls() const { return tls_ != nullptr; }

  /// TLS handshake and shutdown. Only if is_tls().
  void async_handshake(std::function<void(error_code)> done);
  void async_shutdown(std::function<void(error_code)> done);

  template <class Buffers, class Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    read_some(*boost::asio::buffer_sequence_begin(buffers), shared(std::forward<Handler>(handler)));
  }
  template <class Buffers, class Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    write_some(
        {boost::asio::buffer_sequence_begin(buffers), boost::asio::buffer_sequence_end(buffers)},
        shared(std::forward<Handler>(handler)));
  }

 private:
  using Buffers = std::vector<boost::asio::const_buffer>;

  /// Makes a move-only handler copyable for std::function.
  template <class Handler>
  static Done shared(Handler&& handler) {
    return [kept = std::make_shared<std::decay_t<Handler>>(std::forward<Handler>(handler))](
               error_code fault, size_t num_bytes) { std::move (*kept)(fault, num_bytes); };
  }
  void read_some(boost::asio::mutable_buffer buffer, Done done);
  void write_some(const Buffers& buffers, Done done);

  std::shared_ptr<boost::asio::ssl::context> context_;
  std::unique_ptr<TimedSocket> socket_;
  std::unique_ptr<boost::beast::ssl_stream<TimedSocket&>> tls_;
};

}  // namespace lockstep::metrics
