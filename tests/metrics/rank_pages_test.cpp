// One server that answers for others, over HTTP.
#include "metrics/rank_pages.h"

#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "http_client.h"
#include "tests/support/patience.h"

namespace lockstep::metrics {
namespace rank_pages_test {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kToken = "0123456789abcdef";

HttpResponse page_of(int rank, std::string_view target) {
  if (target == "/live.json")
    return {200, "application/json", "{\"rank\": " + std::to_string(rank) + "}"};
  return {200, "text/plain", "# TYPE a gauge\na " + std::to_string(10 * rank) + "\n"};
}

/// A rank whose page opens with the token alone.
class OtherRank {
 public:
  explicit OtherRank(int rank, double pause_s = 0)
      : server_(
            {.listen = {"127.0.0.1", 0}, .access = {.token = kToken}},
            [rank, pause_s](std::string_view target) {
              std::this_thread::sleep_for(std::chrono::duration<double>(pause_s));
              return page_of(rank, target);
            },
            nullptr),
        rank_(rank) {}
  RankSource source() const {
    return {.rank = rank_, .node = "n1", .address = server_.address().text()};
  }
  uint16_t port() const { return server_.address().port; }

 private:
  HttpServer server_;
  int rank_;
};

class RankPagesTest : public ::testing::Test {
 protected:
  std::string get(const std::string& target) { return tests::get(server_.address().port, target); }

  std::atomic<int> num_missing_ = -1;
  RankPages pages_{[](std::string_view target) { return page_of(0, target); },
                   [this](int num_ranks) { num_missing_ = num_ranks; }};
  const HttpServer server_{{.listen = {"127.0.0.1", 0}, .later = &pages_},
                           [](std::string_view target) { return page_of(0, target); },
                           nullptr};
};

TEST_F(RankPagesTest, BeforeItKnowsOthersTheServerAnswersByItself) {
  EXPECT_THAT(get("/metrics"), HasSubstr("\na 0\n"));
  EXPECT_EQ(num_missing_, -1);
}

TEST_F(RankPagesTest, OnePageHoldsTheSeriesOfAll) {
  const OtherRank one(1), two(2);
  pages_.gather_from({.rank = 0, .node = "n0"}, {one.source(), two.source()}, kToken);
  const std::string page = get("/metrics");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(page, HasSubstr("a{rank=\"0\",node=\"n0\"} 0\na{rank=\"1\",node=\"n1\"} 10\n"
                              "a{rank=\"2\",node=\"n1\"} 20\n"));
  EXPECT_EQ(num_missing_, 0);
  EXPECT_THAT(tests::get(one.port(), "/metrics"), StartsWith("HTTP/1.1 401"));
}

TEST_F(RankPagesTest, EachReaderGetsTheFormatThatItAsksFor) {
  const OtherRank one(1);
  pages_.gather_from({.rank = 0, .node = "n0"}, {one.source()}, kToken);
  tests::Connection reader(server_.address().port);
  for (const char* accept : {"application/openmetrics-text", "text/plain", "*/*"}) {
    reader.send(std::string("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: ") + accept +
                "\r\n\r\n");
    const std::string answer = reader.read_answer();
    EXPECT_THAT(answer, HasSubstr("a{rank=\"0\",node=\"n0\"} 0\na{rank=\"1\",node=\"n1\"} 10\n"));
    EXPECT_EQ(answer.ends_with("# EOF\n"), std::string(accept).starts_with("application"))
        << answer;
  }
}

TEST_F(RankPagesTest, APageForAnotherProcessIsLeftToTheServer) {
  const OtherRank one(1);
  pages_.gather_from({.rank = 0, .node = "n0", .process = "a1b2"}, {one.source()}, kToken);
  EXPECT_THAT(get("/metrics?process=a1b2"), HasSubstr("rank=\"1\""));
  EXPECT_THAT(get("/metrics?process=c3d4"), Not(HasSubstr("rank=\"1\"")));
}

TEST_F(RankPagesTest, ARankThatDoesNotAnswerIsLeftOutInTime) {
  const OtherRank one(1);
  const OtherRank slow(2, 3);
  RankSource gone;
  {
    const OtherRank ended(3);
    gone = ended.source();
  }
  pages_.gather_from({.rank = 0, .node = "n0"}, {one.source(), slow.source(), gone}, kToken);
  const tests::Patience patience(4);
  const std::string page = get("/metrics");
  EXPECT_TRUE(patience.is_kept());
  EXPECT_THAT(page, HasSubstr("a{rank=\"1\",node=\"n1\"} 10\n"));
  EXPECT_THAT(page, Not(HasSubstr("rank=\"2\"")));
  EXPECT_EQ(num_missing_, 2);
}

TEST_F(RankPagesTest, ManyReadersAskTheOthersOnce) {
  const OtherRank slow(1, 0.5);
  pages_.gather_from({.rank = 0, .node = "n0"}, {slow.source()}, kToken);
  const tests::Patience patience(3);  // not 8 x 0.5 s
  std::vector<std::jthread> readers;
  for (int i = 0; i < 8; ++i)
    readers.emplace_back([&] { EXPECT_THAT(get("/metrics"), HasSubstr("rank=\"1\"")); });
  readers.clear();
  EXPECT_TRUE(patience.is_kept());
}

TEST_F(RankPagesTest, TheLivePageReadsAnyRank) {
  const OtherRank one(1);
  pages_.gather_from({.rank = 0, .node = "n0"}, {one.source()}, kToken);
  EXPECT_THAT(get("/live.json?rank=1"), HasSubstr("{\"rank\": 1}"));
  EXPECT_THAT(get("/live.json?rank=0"), HasSubstr("{\"rank\": 0}"));
  EXPECT_THAT(get("/live.json"), HasSubstr("{\"rank\": 0}"));
  EXPECT_THAT(get("/live.json?rank=9"), StartsWith("HTTP/1.1 404"));
}

TEST_F(RankPagesTest, EndsWhileAReaderWaits) {
  const OtherRank slow(1, 1);
  std::optional<RankPages> pages;
  pages.emplace([](std::string_view target) { return page_of(0, target); }, [](int) {});
  std::optional<HttpServer> server;
  server.emplace(
      HttpOptions{.listen = {"127.0.0.1", 0}, .later = &*pages},
      [](std::string_view target) { return page_of(0, target); }, nullptr);
  pages->gather_from({.rank = 0, .node = "n0"}, {slow.source()}, kToken);
  tests::Connection reader(server->address().port);
  EXPECT_TRUE(reader.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  server.reset();
  EXPECT_TRUE(reader.is_closed());
  pages.reset();
}

TEST(RankThatShows, IsOneOfTheSameNodeWhereOneIsScraped) {
  const std::vector<RankSource> by_node = {
      {0, "n0", "a", true}, {1, "n0", "b", false}, {2, "n1", "c", true}, {3, "n1", "d", false}};
  for (const auto& [rank, shown_by] : {std::pair{0, 0}, {1, 0}, {2, 2}, {3, 2}})
    EXPECT_EQ(rank_that_shows(by_node[static_cast<size_t>(rank)], by_node), shown_by) << rank;
  const std::vector<RankSource> by_run = {{0, "n0", "a", true}, {1, "n1", "b", false}};
  EXPECT_EQ(rank_that_shows(by_run[1], by_run), 0);
  const std::vector<RankSource> one_name = {
      {0, "n", "a", true}, {1, "n", "b", false}, {2, "n", "c", true}, {3, "n", "d", false}};
  EXPECT_EQ(rank_that_shows(one_name[1], one_name), 0);
  EXPECT_EQ(rank_that_shows(one_name[3], one_name), 2);
}

}  // namespace rank_pages_test
}  // namespace lockstep::metrics
