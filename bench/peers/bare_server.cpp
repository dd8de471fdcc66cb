// The least that an answer over a connection of its own can cost: accept, read, write, close, in
// one loop. bench/contests/attacked_run.py floods it beside a run's pages.
//   bare_server NUM_ANSWERS    prints its port, then seconds of processor time of an answer

#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

constexpr std::string_view kAnswer =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nok\n";

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

int listen_anywhere() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  if (listener < 0 || bind(listener, plain, size) != 0 || listen(listener, 128) != 0 ||
      getsockname(listener, plain, &size) != 0)
    return -1;
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  return listener;
}

bool answer_one(int listener) {
  const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (connection < 0) return false;
  std::array<char, 8192> request{};
  const bool has_answered = read(connection, request.data(), request.size()) > 0 &&
                            send(connection, kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL) > 0;
  close(connection);
  return has_answered;
}

}  // namespace

int main(int argc, char** argv) {
  const int num_wanted = argc == 2 ? std::atoi(argv[1]) : 0;
  const int listener = num_wanted > 0 ? listen_anywhere() : -1;
  if (listener < 0) {
    std::fputs("usage: bare_server NUM_ANSWERS\n", stderr);
    return 64;
  }
  const double begin_s = thread_seconds();
  for (int num_answers = 0; num_answers < num_wanted;) num_answers += answer_one(listener);
  std::printf("%.9f\n", (thread_seconds() - begin_s) / num_wanted);
  return 0;
}
