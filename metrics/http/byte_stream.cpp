#include "metrics/http/byte_stream.h"

#include <utility>

// The only places where plain and TLS connections differ.
namespace lockstep::metrics {

ByteStream::ByteStream(TimedSocket socket, std::shared_ptr<boost::asio::ssl::context> tls)
    : context_(std::move(tls)), socket_(std::make_unique<TimedSocket>(std::move(socket))) {
  if (context_ != nullptr)
    tls_ = std::make_unique<boost::beast::ssl_stream<TimedSocket&>>(*socket_, *context_);
}

void ByteStream::async_handshake(std::function<void(error_code)> done) {
  tls_->async_handshake(boost::asio::ssl::stream_base::server, std::move(done));
}

void ByteStream::async_shutdown(std::function<void(error_code)> done) {
  tls_->async_shutdown(std::move(done));
}

void ByteStream::read_some(boost::asio::mutable_buffer buffer, Done done) {
  if (tls_ != nullptr)
    tls_->async_read_some(buffer, std::move(done));
  else
    socket_->async_read_some(buffer, std::move(done));
}

void ByteStream::write_some(const Buffers& buffers, Done done) {
  if (tls_ != nullptr)
    tls_->async_write_some(buffers, std::move(done));
  else
    socket_->async_write_some(buffers, std::move(done));
}

}  // namespace lockstep::metrics
