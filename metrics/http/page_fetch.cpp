#include "metrics/http/page_fetch.h"

#include <array>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "metrics/http/listen_address.h"

namespace lockstep::metrics {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::beast::error_code;

constexpr uint64_t kPageLimitBytes = 16 << 20;

/// One request. The object lives as long as one of its operations is pending. The time limit
/// includes the name look-up. It reads and writes directly and uses Beast only as parser: Beast's
/// own functions would add five seconds of compile time here.
class Fetch : public std::enable_shared_from_this<Fetch> {
 public:
  Fetch(asio::io_context& io, const PageRequest& request,
        std::function<void(std::optional<std::string>)> done)
      : resolver_(io),
        socket_(io),
        timer_(io),
        limit_(request.time_limit),
        done_(std::move(done)),
        message_(fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n"
                             "Accept: {}\r\nConnection: close\r\n\r\n",
                             request.target, request.address, request.token, request.accept)) {
    parser_.body_limit(kPageLimitBytes);
  }

  void start(const ListenAddress& address) {
    timer_.expires_after(limit_);
    timer_.async_wait([self = shared_from_this()](error_code stopped) {
      if (!stopped) self->end(std::nullopt);
    });
    resolver_.async_resolve(
        address.host, std::to_string(address.port),
        [self = shared_from_this()](error_code fault, const tcp::resolver::results_type& found) {
          if (!self->goes_on(fault)) return;
          asio::async_connect(
              self->socket_, found,
              [self](error_code no_way, const tcp::endpoint&) { self->write(no_way); });
        });
  }

  void end(std::optional<std::string> page) {
    // Several operations may end at once; only the first one reports.
    if (!done_) return;
    timer_.cancel();
    resolver_.cancel();
    error_code ignored;
    socket_.close(ignored);
    // Cleared before the call, so that it is never called twice.
    std::exchange(done_, nullptr)(std::move(page));
  }

 private:
  bool goes_on(error_code fault) {
    // After end() the other pending operations return here with an error and stop.
    if (fault) end(std::nullopt);
    return done_ != nullptr;
  }

  void write(error_code fault) {
    if (!goes_on(fault)) return;
    asio::async_write(socket_, asio::buffer(message_),
                      [self = shared_from_this()](error_code cut, size_t) {
                        if (self->goes_on(cut)) self->read();
                      });
  }

  void read() {
    socket_.async_read_some(asio::buffer(piece_),
                            [self = shared_from_this()](error_code fault, size_t num_bytes) {
                              // End of file may come with the last bytes, which are parsed below.
                              if (fault != asio::error::eof && !self->goes_on(fault)) return;
                              self->parse(num_bytes, fault == asio::error::eof);
                            });
  }

  void parse(size_t num_bytes, bool is_all) {
    unread_.append(piece_.data(), num_bytes);
    error_code fault = put();
    if (!fault && parser_.is_header_done() && !parser_.is_done() && !parser_.eager()) {
      parser_.eager(true);
      // Beast would allocate the whole body before it checks its limit.
      if (parser_.content_length().value_or(0) > kPageLimitBytes)
        fault = http::error::body_limit;
      else
        fault = put();
    }
    // The end of the stream may also be the end of the body.
    if (is_all && !fault && !parser_.got_some()) fault = http::error::end_of_stream;
    if (is_all && !fault && !parser_.is_done()) parser_.put_eof(fault);
    if (!goes_on(fault)) return;
    if (!parser_.is_done()) return read();
    auto& answer = parser_.get();
    if (answer.result() != http::status::ok) return end(std::nullopt);
    end(std::move(answer.body()));
  }

  error_code put() {
    error_code fault;
    unread_.erase(0, parser_.put(asio::buffer(unread_), fault));
    // need_more only says that the bytes so far are incomplete.
    return fault == http::error::need_more ? error_code() : fault;
  }

  tcp::resolver resolver_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  const std::chrono::milliseconds limit_;
  std::function<void(std::optional<std::string>)> done_;
  const std::string message_;
  std::array<char, 64 << 10> piece_{};
  std::string unread_;
  http::response_parser<http::string_body> parser_;
};

}  // namespace

void fetch_page(asio::io_context& io, const PageRequest& request,
                std::function<void(std::optional<std::string>)> done) {
  const auto fetch = std::make_shared<Fetch>(io, request, std::move(done));
  const std::optional<ListenAddress> address = parse_listen_address(request.address);
  if (!address) return fetch->end(std::nullopt);
  fetch->start(*address);
}

}  // namespace lockstep::metrics
