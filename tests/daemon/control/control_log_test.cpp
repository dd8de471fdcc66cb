#include "daemon/control/control_api.h"

#include <memory>
#include <regex>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "metrics/counting_observer.h"
#include "metrics/http_client.h"

namespace lockstep::daemon {
namespace control_log_test {

using ::testing::HasSubstr;
using ::testing::Not;
using tests::Connection;

TEST(LineLimit, LetsOneLineInATimeThroughAndCountsTheRest) {
  using std::chrono::milliseconds;
  const LineLimit::Clock::time_point start{std::chrono::seconds(100)};
  LineLimit limit(std::chrono::seconds(1));
  EXPECT_EQ(limit.admit(start), 0);
  EXPECT_EQ(limit.admit(start + milliseconds(1)), std::nullopt);
  EXPECT_EQ(limit.admit(start + milliseconds(999)), std::nullopt);
  EXPECT_EQ(limit.num_kept_back(), 2);
  EXPECT_EQ(limit.admit(start + milliseconds(1000)), 2);
  EXPECT_EQ(limit.num_kept_back(), 0);
}

/// A server of calls and other pages, and what it logs.
class ControlLogTest : public ::testing::Test {
 protected:
  ControlLogTest() {
    log::configure_console({.level = log::Level::kDebug});
    log::configure({.console = log::Level::kDebug});
    ::testing::internal::CaptureStderr();
    serve();
  }
  ~ControlLogTest() override {
    log::configure_console({});
    log::configure({});
  }

  void serve() {
    const auto answer = [](std::string_view target) {
      return metrics::HttpResponse{target.find("nothing") == std::string::npos ? 200 : 404};
    };
    server = std::make_unique<metrics::HttpServer>(
        metrics::HttpOptions{.listen = {"127.0.0.1", 0}, .post = answer}, answer, log.get());
  }
  void call(const std::string& request) const {
    Connection connection(server->address().port);
    connection.send(request + " HTTP/1.1\r\nHost: localhost\r\nX-Lockstep-Control: 1\r\n" +
                    "Connection: close\r\n\r\n");
    (void)connection.read_to_end();
  }
  std::string told() {
    server.reset();
    log.reset();
    return ::testing::internal::GetCapturedStderr();
  }

  tests::CountingObserver next;
  std::unique_ptr<ControlLog> log = std::make_unique<ControlLog>(&next);
  std::unique_ptr<metrics::HttpServer> server;
};

TEST_F(ControlLogTest, ARefusalIsAWarningAndAGetALineAMinute) {
  call("DELETE /control/stop?a=\xff");
  for (int i = 0; i < 5; ++i) call("GET /control/status");
  const std::string text = told();
  EXPECT_THAT(text,
              HasSubstr(" W [control] refused DELETE /control/stop?a=? from 127.0.0.1: 405\n"));
  EXPECT_THAT(text, HasSubstr(" I [control] GET /control/status from 127.0.0.1\n"));
  EXPECT_THAT(text, HasSubstr(" I [control] 4 more GETs since the last such line\n"));
}

TEST_F(ControlLogTest, WhatIsFollowedAndOtherPagesHaveNoLineHere) {
  call("POST /control/save");
  call("GET /metrics");
  call("GET /nothing");
  EXPECT_EQ(told(), "");
  EXPECT_EQ(next.answers("other 200"), 2) << "the counters go on";
}

TEST_F(ControlLogTest, EachCallOfAFloodIsCounted) {
  constexpr int kNumCalls = 200;
  for (int i = 0; i < kNumCalls; ++i) call("POST /control/nothing");
  const std::string text = told();
  const std::regex line("refused POST /control/nothing from 127.0.0.1: 404"), count("(\\d+) more");
  const auto lines = std::sregex_iterator(text.begin(), text.end(), line);
  auto num_calls = std::distance(lines, std::sregex_iterator());
  EXPECT_LT(num_calls, kNumCalls / 2) << text;
  for (auto at = std::sregex_iterator(text.begin(), text.end(), count);
       at != std::sregex_iterator(); ++at)
    num_calls += std::stoi((*at)[1]);
  EXPECT_EQ(num_calls, kNumCalls) << text;
}

TEST_F(ControlLogTest, WhatIsNoRequestHasNoBytesOfItInTheLog) {
  call(std::string("\x02\x1b[31m"));
  const std::string text = told();
  EXPECT_THAT(text, HasSubstr("refused an invalid call from 127.0.0.1: 400"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

}  // namespace control_log_test
}  // namespace lockstep::daemon
