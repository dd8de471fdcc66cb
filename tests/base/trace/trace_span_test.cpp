#include "base/trace.h"

#include <array>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::trace {
namespace trace_span_test {

using ::testing::ElementsAre;

std::vector<std::string> names(const std::vector<SpanRecord>& spans) {
  std::vector<std::string> all;
  for (const SpanRecord& span : spans) all.emplace_back(span.name);
  return all;
}

std::vector<std::string> names(const std::vector<RecentSpan>& spans) {
  std::vector<std::string> all;
  for (const RecentSpan& span : spans) all.emplace_back(span.text());
  return all;
}

std::string open_now(int64_t thread) { return std::string(open_span(recent(), thread).text()); }

TEST(TraceSpan, RecentOnesAreKeptUpToALimitAndOpenOnesAreFound) {
  const Span before("before");  // nothing is kept yet, nor may its end be
  keep_recent();
  EXPECT_THAT(names(recent()), ElementsAre());
  {
    const Span outer("outer");
    {
      const Span inner("inner", 3);
      EXPECT_EQ(open_span(recent(), ::gettid()).detail, 3);
    }
    EXPECT_EQ(open_now(::gettid()), "outer");
    EXPECT_EQ(open_now(1), "");
  }
  EXPECT_EQ(open_now(::gettid()), "");
  EXPECT_THAT(names(recent()), ElementsAre("outer", "inner"));
  const Span long_open("long_open");
  for (int64_t i = 0; i < kNumRecent - 1; ++i) const Span one("short");
  EXPECT_EQ(recent().size(), static_cast<size_t>(kNumRecent));
  EXPECT_EQ(recent().front().text(), "long_open");
  EXPECT_EQ(open_now(::gettid()), "long_open");
  const Span last("last");
  EXPECT_EQ(recent().front().text(), "short");
}

TEST(TraceSpan, ATraceHoldsWhatIsOpenAtItsEndAndNamesOfThreads) {
  start();
  const Span open("open");
  std::thread([] {
    name_thread("worker");
    const Span one("of a thread");
    std::array<char, 16> name{};
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    EXPECT_STREQ(name.data(), "worker");
  }).join();
  const std::vector<SpanRecord> spans = stop();
  ASSERT_THAT(names(spans), ElementsAre("of a thread", "open"));
  EXPECT_STREQ(spans[0].thread_name, "worker");
  EXPECT_STREQ(spans[1].thread_name, "");
  EXPECT_GE(spans[1].end_ns, spans[0].end_ns) << "as if it ended with the trace";
  EXPECT_EQ(spans[1].thread, ::gettid());
  start();
  EXPECT_THAT(names(stop()), ElementsAre()) << "it is of the trace before";
}

TEST(TraceSpan, AnotherProcessOfThisHostCanReadTheRecentOnes) {
  const uint64_t token = recent_token();
  const Span open("of this process, with a name that is too long", 7);
  const pid_t reader = ::fork();
  if (reader == 0) {  // reads its parent, which waits in waitpid()
    const auto spans = SpanRing::of_process(::getppid(), token);
    const RecentSpan span = spans ? open_span(*spans, ::getppid()) : RecentSpan{};
    const bool right = span.text() == "of this process, with a name th" && span.detail == 7;
    ::_exit(right && !SpanRing::of_process(::getppid(), token + 1) &&
                    !SpanRing::of_process(1 << 30, token)
                ? 0
                : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(reader, &status, 0), reader);
  EXPECT_EQ(status, 0);
}

TEST(TraceSpan, ATraceBesideTheRecentOnesHoldsWhatEndedAndWhatIsOpen) {
  keep_recent();
  start();
  std::thread([] { const Span one("of_a_thread"); }).join();
  const Span open("open");
  const std::vector<SpanRecord> spans = stop();
  ASSERT_THAT(names(spans), ElementsAre("of_a_thread", "open"));
  EXPECT_EQ(spans.back().thread, ::gettid());
  EXPECT_LE(spans.back().begin_ns, spans.back().end_ns) << "it ends with the trace";
  EXPECT_NE(spans.front().thread, ::gettid());
  EXPECT_LE(spans.front().begin_ns, spans.front().end_ns);
}

}  // namespace trace_span_test
}  // namespace lockstep::trace
