// Hostile clients, as measured against other servers before this one was chosen: an endless header,
// a huge chunked body, many slow connections. The server must close them, stay small, and continue
// to answer.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "counting_observer.h"
#include "http_client.h"
#include "metrics/http/http_server.h"
#include "tests/support/patience.h"

namespace lockstep::metrics {
namespace http_attack_test {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using tests::Connection;
using tests::CountingObserver;

constexpr double kMiB = 1024 * 1024;
constexpr double kMaxGrowthMiB = 10;
constexpr std::chrono::milliseconds kLook{10};

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  double total_pages = 0, resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE)) / kMiB;
}

class HttpAttack : public ::testing::Test {
 protected:
  HttpAttack() { ask(); }  // buffers and code are in memory from now on

  std::string ask() const { return tests::get(port, "/livez"); }
  /// Sends `piece` up to `limit_bytes` or until the server closes; what was sent.
  static double send_until_cut(Connection* connection, const std::string& piece,
                               double limit_bytes) {
    double num_bytes = 0;
    while (num_bytes < limit_bytes && connection->send(piece))
      num_bytes += static_cast<double>(piece.size());
    return num_bytes;
  }

  CountingObserver observer;
  const HttpServer server{{.listen = {"127.0.0.1", 0}, .timeout_s = 1},
                          [](std::string_view) {
                            return HttpResponse{200, "text/plain", "ok\n", "/livez"};
                          },
                          &observer};
  const uint16_t port = server.address().port;
};

TEST_F(HttpAttack, AnEndlessHeaderIsCut) {
  const double before_mib = resident_mib();
  Connection connection(port);
  connection.send("GET / HTTP/1.1\r\nX: ");
  EXPECT_LT(send_until_cut(&connection, std::string(16 * 1024, 'a'), 200 * kMiB), 16 * kMiB);
  EXPECT_LT(resident_mib() - before_mib, kMaxGrowthMiB);
  EXPECT_TRUE(observer.sees(Rejection::kHeader, 1));
  EXPECT_THAT(ask(), HasSubstr("200 OK"));
}

TEST_F(HttpAttack, EndlesslyManyHeaderLinesAreCut) {
  Connection connection(port);
  connection.send("GET / HTTP/1.1\r\n");
  EXPECT_LT(send_until_cut(&connection, "Name: value\r\n", 20 * kMiB), 16 * kMiB);
  EXPECT_TRUE(observer.sees(Rejection::kHeader, 1));
}

TEST_F(HttpAttack, AHeaderJustAboveTheLimitGetsItsAnswer) {
  Connection connection(port);
  connection.send("GET / HTTP/1.1\r\nX: " + std::string(9000, 'a') + "\r\n\r\n");
  EXPECT_THAT(connection.read_to_end(), StartsWith("HTTP/1.1 431 "));
}

TEST_F(HttpAttack, AHugeChunkedBodyIsCut) {
  const double before_mib = resident_mib();
  Connection connection(port);
  connection.send("GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "10000\r\n" + std::string(65536, 'b') + "\r\n";
  EXPECT_LT(send_until_cut(&connection, chunk, 200 * kMiB), 16 * kMiB);
  EXPECT_LT(resident_mib() - before_mib, kMaxGrowthMiB);
  EXPECT_TRUE(observer.sees(Rejection::kBody, 1));
  EXPECT_THAT(ask(), HasSubstr("200 OK"));
}

TEST_F(HttpAttack, AHugePostIsRefusedUnread) {
  Connection connection(port);
  connection.send("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "10000\r\n" + std::string(65536, 'b') + "\r\n";
  EXPECT_LT(send_until_cut(&connection, chunk, 200 * kMiB), 16 * kMiB);
  EXPECT_THAT(connection.read_to_end(), AnyOf(StartsWith("HTTP/1.1 405 "), IsEmpty()));
}

TEST_F(HttpAttack, AnAnnouncedHugeBodyIsRefusedUnread) {
  Connection connection(port);
  connection.send("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n");
  EXPECT_THAT(connection.read_to_end(), StartsWith("HTTP/1.1 413 "));
}

TEST_F(HttpAttack, AnEndlessChunkHeaderIsCut) {
  const double before_mib = resident_mib();
  Connection connection(port);
  connection.send("GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;");
  EXPECT_LT(send_until_cut(&connection, std::string(16 * 1024, 'a'), 200 * kMiB), 16 * kMiB);
  EXPECT_LT(resident_mib() - before_mib, kMaxGrowthMiB);
}

/// Clients that send a header line now and then and never come to an end.
class SlowClients {
 public:
  explicit SlowClients(uint16_t port) {
    for (int i = 0; i < kNum; ++i) {
      all_.emplace_back(port);
      EXPECT_TRUE(all_.back().connected());
      all_.back().send("GET / HTTP/1.1\r\nHost: localhost\r\n");
    }
  }
  void send_a_line() {
    for (Connection& connection : all_) connection.send("X: y\r\n");
  }
  /// Waits for each at most its time limit, 10 s.
  bool all_are_closed() {
    return std::all_of(all_.begin(), all_.end(), [](Connection& one) { return one.is_closed(); });
  }

  static constexpr int kNum = 60;

 private:
  std::deque<Connection> all_;
};

TEST(HttpAttackByWaiting, ProbesAreAnsweredBesideSlowConnections) {
  CountingObserver observer;
  const HttpServer patient(
      {.listen = {"127.0.0.1", 0}, .timeout_s = 3600},
      [](std::string_view) {
        return HttpResponse{200, "text/plain", "ok\n", "/livez"};
      },
      &observer);
  const double before_mib = resident_mib();
  SlowClients slow(patient.address().port);
  for (int round = 0; round < 12; ++round) {
    slow.send_a_line();
    // None of them ends within an hour: an answer that waited for one would not come.
    EXPECT_THAT(tests::get(patient.address().port, "/livez"), HasSubstr("200 OK"));
  }
  EXPECT_EQ(observer.rejections(Rejection::kTimeout), 0);
  EXPECT_LT(resident_mib() - before_mib, kMaxGrowthMiB);
}

TEST_F(HttpAttack, SlowConnectionsAreCutHoweverOftenTheySend) {
  const double before_mib = resident_mib();
  SlowClients slow(port);
  while (observer.rejections(Rejection::kTimeout) < SlowClients::kNum) {  // ctest ends what hangs
    slow.send_a_line();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the time limit is 1 s
  }
  EXPECT_TRUE(slow.all_are_closed());
  EXPECT_LT(resident_mib() - before_mib, kMaxGrowthMiB);
  EXPECT_THAT(ask(), HasSubstr("200 OK"));
  EXPECT_EQ(observer.rejections(Rejection::kTimeout), SlowClients::kNum);
}

/// Throws when a connection is turned away, as any allocation there may.
class ThrowingObserver final : public HttpObserver {
 public:
  void on_answer(std::string_view, int, double) override {}
  void on_rejected(Rejection) override {
    ++num_thrown;
    throw std::bad_alloc();
  }
  std::atomic<int> num_thrown{0};
};

TEST(HttpAttackByNumbers, TheServerGoesOnAfterAFaultInTurningOneAway) {
  ThrowingObserver observer;
  const HttpServer server(
      {.listen = {"127.0.0.1", 0}, .timeout_s = 3600, .max_connections = 1},
      [](std::string_view target) {
        const size_t num_bytes = target == "/livez" ? 3 : 64 << 20;
        return HttpResponse{200, "text/plain", std::string(num_bytes, 'x'), "/livez"};
      },
      &observer);
  const uint16_t port = server.address().port;
  auto first = std::make_unique<Connection>(port);
  first->send("GET /huge HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(first->has_something());  // it holds the only place while it does not read
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Connection(port).is_closed());
  EXPECT_EQ(observer.num_thrown, 3);
  first.reset();
  std::string answer;
  while (answer.empty()) answer = tests::get(port, "/livez");  // once the place is free
  EXPECT_THAT(answer, HasSubstr("200 OK"));
}

/// Time limit for a crowded machine. An answer during these attacks takes less than 0.1 s on an
/// idle machine. A client that is queued after another one would wait forever.
constexpr double kPatienceS = 5;

/// The longest of five answers in a row.
double slowest_of_five_s(uint16_t port) {
  double slowest_s = 0;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(tests::get(port, "/livez"), HasSubstr("200 OK"));
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    slowest_s = std::max(slowest_s, passed.count());
  }
  return slowest_s;
}

TEST_F(HttpAttack, PipelinedRequestsAreAnsweredInOrderAndNoneTooMany) {
  const double before_mib = resident_mib();
  Connection connection(port);
  std::string requests;
  for (int i = 0; i < 1000; ++i) requests += "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
  connection.send(requests + "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  const std::string answers = connection.read_to_end();
  int num_answers = 0;
  for (size_t at = 0; (at = answers.find("HTTP/1.1 200 OK", at)) != std::string::npos; ++at)
    ++num_answers;
  EXPECT_EQ(num_answers, 1001);
  EXPECT_LT(resident_mib() - before_mib, kMaxGrowthMiB);
}

TEST_F(HttpAttack, AFloodOfConnectionsDelaysNobody) {
  const double before_mib = resident_mib();
  std::atomic<bool> stop = false;
  std::atomic<int> num_asked = 0;
  std::vector<std::jthread> clients;
  for (int i = 0; i < 64; ++i)
    clients.emplace_back([&] {
      while (!stop) {
        Connection one(port);
        one.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
        num_asked += one.read_answer().find("200 OK") != std::string::npos;
      }
    });
  while (num_asked < 200) std::this_thread::yield();
  EXPECT_LT(slowest_of_five_s(port), kPatienceS);
  stop = true;
  clients.clear();
  EXPECT_LT(resident_mib() - before_mib, kMaxGrowthMiB);
}

TEST_F(HttpAttack, ProbesAreAnsweredAtOnceBesideOneThatSendsWithoutEnd) {
  std::jthread attacker([&](const std::stop_token& stopped) {
    while (!stopped.stop_requested()) {
      Connection connection(port);
      connection.send("GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
      send_until_cut(&connection, "10000\r\n" + std::string(65536, 'b') + "\r\n", 200 * kMiB);
    }
  });
  while (observer.rejections(Rejection::kBody) < 3) std::this_thread::yield();  // it continues
  EXPECT_LT(slowest_of_five_s(port), kPatienceS);
}

TEST_F(HttpAttack, AFloodThatIsRefusedDelaysNobody) {
  std::atomic<bool> stop = false;
  std::atomic<int> num_refused = 0;
  std::vector<std::jthread> clients;
  for (int i = 0; i < 64; ++i)
    clients.emplace_back([&] {
      while (!stop) {
        Connection one(port);
        one.send("PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        num_refused += one.read_answer().find("405") != std::string::npos;
      }
    });
  while (num_refused < 300) std::this_thread::sleep_for(kLook);
  EXPECT_TRUE(tests::comes_true([&] { return slowest_of_five_s(port) < 1; }))
      << "it takes them longer, every time";
  stop = true;
}

TEST_F(HttpAttack, AConnectionThatSaysNothingIsCut) {
  Connection silent(port, 100);
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(observer.sees(Rejection::kTimeout, 1));
}

TEST_F(HttpAttack, AKeptConnectionMayEndIdleWithoutBlame) {
  Connection idle(port, 100);
  idle.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  idle.read_answer();
  EXPECT_TRUE(idle.is_closed());
  EXPECT_EQ(observer.rejections(Rejection::kTimeout), 0);
}

TEST(HttpAttackOnWriting, AClientThatDoesNotReadIsCut) {
  CountingObserver observer;
  const std::string large(32 * 1024 * 1024, 'x');
  const HttpServer server(
      {.listen = {"127.0.0.1", 0}, .timeout_s = 1},
      [&](std::string_view) {
        return HttpResponse{200, "text/plain", large, "/large"};
      },
      &observer);
  Connection greedy(server.address().port);
  greedy.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(observer.sees(Rejection::kTimeout, 1));
}

}  // namespace http_attack_test
}  // namespace lockstep::metrics
