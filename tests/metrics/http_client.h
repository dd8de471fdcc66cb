#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace lockstep::tests {

/// A plain connection to a port of 127.0.0.1 or to a Unix socket that sends what it is told: the
/// tests' honest and hostile client.
class Connection {
 public:
  explicit Connection(uint16_t port, double timeout_s = 10)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    timeval limit{.tv_sec = static_cast<time_t>(timeout_s),
                  .tv_usec = static_cast<suseconds_t>(
                      (timeout_s - static_cast<double>(static_cast<time_t>(timeout_s))) * 1e6)};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  /// Connects to a Unix socket.
  explicit Connection(const std::filesystem::path& path)
      : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.string().copy(address.sun_path, sizeof(address.sun_path) - 1);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Connection() { ::close(socket_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool connected() const { return connected_; }

  /// False once the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t done = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (done <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(done));
    }
    return true;
  }

  /// Reads until the server closes or the time limit passes.
  std::string read_to_end() {
    std::string text;
    while (read_some(&text)) {
    }
    return text;
  }

  /// One answer with its body (by Content-Length), so that the connection can continue.
  std::string read_answer(bool has_body = true) {
    while (rest_.find("\r\n\r\n") == std::string::npos)
      if (!read_some(&rest_)) return std::exchange(rest_, {});
    const size_t header = rest_.find("\r\n\r\n") + 4;
    const size_t at = rest_.find("Content-Length: ");
    const size_t length = has_body && at < header ? std::stoul(rest_.substr(at + 16)) : 0;
    while (rest_.size() < header + length)
      if (!read_some(&rest_)) break;
    std::string answer = rest_.substr(0, header + length);
    rest_.erase(0, answer.size());
    return answer;
  }

  /// Waits for the first byte, which stays unread.
  bool has_something() {
    char byte = 0;
    return ::recv(socket_, &byte, 1, MSG_PEEK) == 1;
  }

  /// True if the server has closed it (waits at most the time limit).
  bool is_closed() {
    char byte = 0;
    return ::recv(socket_, &byte, 1, 0) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }

 private:
  bool read_some(std::string* text) {
    char buffer[4096];
    const ssize_t done = ::recv(socket_, buffer, sizeof(buffer), 0);
    if (done > 0) text->append(buffer, static_cast<size_t>(done));
    return done > 0;
  }

  int socket_;
  bool connected_ = false;
  std::string rest_;
};

inline std::string get(uint16_t port, std::string_view target) {
  Connection connection(port);
  connection.send("GET " + std::string(target) +
                  " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  return connection.read_to_end();
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace lockstep::tests
