#include "metrics/http/waiting_line.h"

#include <chrono>
#include <ctime>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/patience.h"

namespace lockstep::metrics {
namespace waiting_line_test {

TEST(ProcessorAllowance, ABurstIsFreeAndWhatWasUsedBeyondIsRepaid) {
  ProcessorAllowance allowance(/*share=*/0.01, /*burst_s=*/0.05);
  EXPECT_EQ(allowance.wait_s(/*now_s=*/100, /*used_s=*/0), 0);
  EXPECT_EQ(allowance.wait_s(100, 0.04), 0);
  EXPECT_NEAR(allowance.wait_s(100, 0.06), 1.2, 1e-9);  // 10 ms, and 2 to use, at 10 ms a second
  EXPECT_NEAR(allowance.wait_s(100.5, 0.06), 0.7, 1e-9);
  EXPECT_EQ(allowance.wait_s(101.2, 0.06), 0);
}

TEST(ProcessorAllowance, QuietGivesTheBurstBackAndNoMore) {
  ProcessorAllowance allowance(0.01, 0.05);
  EXPECT_EQ(allowance.wait_s(100, 0), 0);
  EXPECT_GT(allowance.wait_s(100, 0.2), 0);
  EXPECT_EQ(allowance.wait_s(1000, 0.2), 0);
  EXPECT_GT(allowance.wait_s(1000, 0.26), 0);
}

/// Uses the processor for so long.
void work(double time_s) {
  const std::clock_t end = std::clock() + static_cast<std::clock_t>(time_s * CLOCKS_PER_SEC);
  while (std::clock() < end) {
  }
}

TEST(WaitingLine, GoesOnOneByOneAndRefusedOnesComeLast) {
  boost::asio::io_context io;
  WaitingLine line(io, /*share=*/0.2, /*burst_s=*/1e-3);
  std::string order;
  const auto begin = std::chrono::steady_clock::now();
  line.enter([&] {
    order += 'a';
    work(10e-3);
  });
  EXPECT_EQ(order, "a") << "nothing was used yet";
  line.enter_last([&] { order += 'r'; });
  line.enter([&] {
    order += 'b';
    work(10e-3);
  });
  EXPECT_EQ(order, "a");
  io.run();
  EXPECT_EQ(order, "abr");
  // 20 ms of work at a fifth of a core
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(80));
}

TEST(WaitingLine, NoneWaitsLongThoughTheThreadHasUsedAllThereIs) {
  boost::asio::io_context io;
  WaitingLine line(io, /*share=*/0.001, /*burst_s=*/1e-3);
  line.enter([] { work(30e-3); });  // repaid after half a minute
  std::string order;
  const tests::Patience patience(5);
  line.enter_last([&] { order += 'r'; });
  line.enter([&] { order += 'a'; });
  io.run();
  EXPECT_EQ(order, "ra") << "the older one";
  EXPECT_GT(patience.passed_s(), 1.9);
  EXPECT_TRUE(patience.is_kept());
}

TEST(WaitingLine, OneThatThrowsHoldsUpNobody) {
  boost::asio::io_context io;
  WaitingLine line(io, 0.5, 1e-3);
  bool second = false;
  line.enter([] { work(4e-3); });
  line.enter([] { throw std::runtime_error("first"); });
  line.enter([&] { second = true; });
  EXPECT_THROW(io.run(), std::runtime_error);
  io.run();
  EXPECT_TRUE(second);
}

}  // namespace waiting_line_test
}  // namespace lockstep::metrics
