#include "base/trace_span.h"

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep::trace {
namespace trace_span_test {

using ::testing::ElementsAre;

std::vector<std::string> names(const std::vector<SpanRecord>& spans) {
  std::vector<std::string> all;
  for (const SpanRecord& span : spans) all.emplace_back(span.name);
  return all;
}

TEST(TraceSpan, RecentOnesAreKeptUpToALimitAndOpenOnesAreFound) {
  const Span before("before");  // nothing is kept yet, nor may its end be
  keep_recent();
  EXPECT_THAT(names(recent()), ElementsAre());
  {
    const Span outer("outer");
    {
      const Span inner("inner", 3);
      EXPECT_EQ(open_span(::gettid()).detail, 3);
    }
    EXPECT_STREQ(open_span(::gettid()).name, "outer");
    EXPECT_STREQ(open_span(1).name, "");
  }
  EXPECT_STREQ(open_span(::gettid()).name, "");
  EXPECT_THAT(names(recent()), ElementsAre("outer", "inner"));
  const Span long_open("long_open");
  for (int64_t i = 0; i < kNumRecent - 1; ++i) const Span one("short");
  EXPECT_EQ(recent().size(), static_cast<size_t>(kNumRecent));
  EXPECT_STREQ(recent().front().name, "long_open");
  EXPECT_STREQ(open_span(::gettid()).name, "long_open");
  const Span last("last");
  EXPECT_STREQ(recent().front().name, "short");
}

TEST(TraceSpan, ATraceBesideTheRecentOnesHoldsWhatEnded) {
  keep_recent();
  start();
  std::thread([] { const Span one("of_a_thread"); }).join();
  const Span open("open");
  const std::vector<SpanRecord> spans = stop();
  EXPECT_THAT(names(spans), ElementsAre("of_a_thread"));
  EXPECT_NE(spans.front().thread, ::gettid());
  EXPECT_LE(spans.front().begin_ns, spans.front().end_ns);
}

}  // namespace trace_span_test
}  // namespace lockstep::trace
