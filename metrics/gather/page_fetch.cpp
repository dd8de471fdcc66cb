#include "metrics/gather/page_fetch.h"

#include <memory>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "metrics/http/listen_address.h"

namespace lockstep::metrics {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::beast::error_code;

constexpr uint64_t kPageLimitBytes = 16 << 20;

/// Lives as long as an operation of it is under way. A name that is looked up too long is cut too.
class Fetch : public std::enable_shared_from_this<Fetch> {
 public:
  Fetch(asio::io_context& io, const PageRequest& request,
        std::function<void(std::optional<std::string>)> done)
      : resolver_(io), stream_(io), timer_(io), limit_(request.time_limit), done_(std::move(done)) {
    parser_.body_limit(kPageLimitBytes);
    message_.method(http::verb::get);
    message_.version(11);
    message_.target(request.target);
    message_.set(http::field::host, request.address);
    message_.set(http::field::authorization, "Bearer " + request.token);
    message_.set(http::field::connection, "close");
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
          self->stream_.async_connect(
              found, [self](error_code no_way, const tcp::endpoint&) { self->write(no_way); });
        });
  }

  void end(std::optional<std::string> page) {
    if (!done_) return;
    timer_.cancel();
    resolver_.cancel();
    stream_.close();
    std::exchange(done_, nullptr)(std::move(page));
  }

 private:
  bool goes_on(error_code fault) {
    if (fault) end(std::nullopt);
    return done_ != nullptr;
  }

  void write(error_code fault) {
    if (!goes_on(fault)) return;
    http::async_write(stream_, message_, [self = shared_from_this()](error_code cut, size_t) {
      if (self->goes_on(cut)) self->read();
    });
  }

  void read() {
    http::async_read(stream_, buffer_, parser_,
                     [self = shared_from_this()](error_code fault, size_t) {
                       if (!self->goes_on(fault)) return;
                       auto& answer = self->parser_.get();
                       if (answer.result() != http::status::ok) return self->end(std::nullopt);
                       self->end(std::move(answer.body()));
                     });
  }

  tcp::resolver resolver_;
  boost::beast::tcp_stream stream_;
  asio::steady_timer timer_;
  const std::chrono::milliseconds limit_;
  std::function<void(std::optional<std::string>)> done_;
  http::request<http::empty_body> message_;
  http::response_parser<http::string_body> parser_;
  boost::beast::flat_buffer buffer_;
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
