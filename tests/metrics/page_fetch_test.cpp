// Answers of a peer, and which of them count as a page.
#include "metrics/http/page_fetch.h"

#include <optional>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>

namespace lockstep::metrics {
namespace page_fetch_test {

namespace asio = boost::asio;
using asio::ip::tcp;

/// Reads one request, answers `text`, and closes unless it is told to stay.
class Peer {
 public:
  explicit Peer(std::string text, bool stays = false)
      : acceptor_(io_, {asio::ip::address_v4::loopback(), 0}), connection_(io_) {
    thread_ = std::jthread([this, text = std::move(text), stays] {
      boost::system::error_code ignored;
      acceptor_.accept(connection_, ignored);
      std::string request;
      asio::read_until(connection_, asio::dynamic_buffer(request), "\r\n\r\n", ignored);
      request_ = request;
      asio::write(connection_, asio::buffer(text), ignored);
      if (!stays) connection_.close(ignored);
    });
  }
  std::string address() const {
    return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }
  const std::string& request() {
    thread_.join();
    return request_;
  }

 private:
  asio::io_context io_;
  tcp::acceptor acceptor_;
  tcp::socket connection_;
  std::string request_;
  std::jthread thread_;
};

std::optional<std::string> fetch(const Peer& peer) {
  asio::io_context io;
  std::optional<std::string> page = "done is not called";
  fetch_page(io, {peer.address(), "/metrics", "secret", std::chrono::milliseconds(1000)},
             [&](std::optional<std::string> text) { page = std::move(text); });
  io.run();
  return page;
}

TEST(PageFetch, AsksWithTheToken) {
  Peer peer("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na 1");
  EXPECT_EQ(fetch(peer), "a 1");
  EXPECT_EQ(peer.request(), "GET /metrics HTTP/1.1\r\nHost: " + peer.address() +
                                "\r\nAuthorization: Bearer secret\r\nAccept: */*\r\n"
                                "Connection: close\r\n\r\n");
}

TEST(PageFetch, TakesAPageHoweverItsEndIsTold) {
  EXPECT_EQ(fetch(Peer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")), "");
  EXPECT_EQ(fetch(Peer("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na 1", true)), "a 1");
  EXPECT_EQ(fetch(Peer("HTTP/1.1 200 OK\r\n\r\na 1\nb 2\n")), "a 1\nb 2\n");
  EXPECT_EQ(fetch(Peer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                       "2\r\na \r\n1\r\n1\r\n0\r\n\r\n",
                       true)),
            "a 1");
  const std::string large(3 << 20, 'x');
  EXPECT_EQ(fetch(Peer("HTTP/1.1 200 OK\r\n\r\n" + large)), large);
}

TEST(PageFetch, TakesNothingElseForOne) {
  for (const char* answer :
       {"", "HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na 1",
        "HTTP/1.1 503 No\r\nContent-Length: 3\r\n\r\na 1", "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\na"})
    EXPECT_EQ(fetch(Peer(answer)), std::nullopt) << answer;
  EXPECT_EQ(fetch(Peer("HTTP/1.1 200 OK\r\n" + std::string(20'000, 'x') + ": 1\r\n\r\n")),
            std::nullopt);
}

TEST(PageFetch, WaitsNoLongerThanItIsTold) {
  EXPECT_EQ(fetch(Peer("HTTP/1.1 200 OK\r\n", true)), std::nullopt);
}

}  // namespace page_fetch_test
}  // namespace lockstep::metrics
