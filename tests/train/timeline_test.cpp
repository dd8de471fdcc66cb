#include "train/profiler_hook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lockstep::train {
namespace timeline_test {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::Pair;

/// LibTorch's trace: begins from a base in nanoseconds, in microseconds as durations are.
constexpr const char* kOperators = R"({"baseTimeNanoseconds": 1000000, "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 9, "tid": 5, "ts": 2.0, "dur": 4.5},
  {"ph": "X", "cat": "cpu_op", "name": "aten::copy_", "pid": 9, "tid": 5, "ts": 1.0, "dur": 0.75},
  {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "pid": 9, "tid": 6, "ts": 3.0, "dur": 1.0},
  {"ph": "X", "cat": "kernel", "name": "add_kernel", "pid": 0, "tid": 7, "ts": 4.0, "dur": 1.0},
  {"ph": "M", "cat": "", "name": "process_name", "pid": 9, "args": {"name": "python"}},
  {"ph": "X", "cat": "Trace", "name": "whole", "pid": 9, "tid": 5, "ts": 0.0, "dur": 90.0}]})";

/// A span around aten::copy_ and aten::add, which by the other clock begins and ends 0.5 us early.
RankTrace some_trace() {
  return {.operators_json = kOperators,
          .spans = {{.name = "forward",
                     .begin_ns = 1'001'500,
                     .end_ns = 1'006'000,
                     .thread = 5,
                     .thread_name = ""},
                    {.name = "reducing",
                     .detail = 3,
                     .begin_ns = 1'001'000,
                     .end_ns = 1'002'000,
                     .thread = 8,
                     .thread_name = "all-reduce"}},
          .thread_names = {{5, "main"}}};
}

json events_of(const RankTrace& trace) {
  return json::parse(
      merged_timeline({rank_events(trace, {.rank = 2, .node = "n1"})}))["traceEvents"];
}

TEST(Timeline, EveryEventIsOfItsRankInMicrosecondsFromTheFirst) {
  std::map<std::string, std::pair<double, double>> found;
  for (const json& event : events_of(some_trace())) {
    EXPECT_EQ(event["pid"], 2);
    if (event["ph"] == "X") found[event["name"]] = {event["ts"], event["dur"]};
  }
  EXPECT_THAT(found,
              ElementsAre(Pair("add_kernel", Pair(3, 1)), Pair("aten::add", Pair(1, 4)),
                          Pair("aten::copy_", Pair(0.5, 0.25)), Pair("aten::relu", Pair(2, 1)),
                          Pair("forward", Pair(0.5, 4.5)), Pair("reducing", Pair(0, 1))))
      << "aten::add is cut to the end of forward, and aten::copy_ to its begin";
}

TEST(Timeline, ArrowsOfRanksStayApart) {
  const RankTrace trace{.operators_json = R"({"baseTimeNanoseconds": 0, "traceEvents": [
    {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "id": 7, "pid": 9, "tid": 5, "ts": 1.0},
    {"ph": "f", "cat": "fwdbwd", "name": "fwdbwd", "id": 7, "pid": 9, "tid": 6, "ts": 2.0}]})"};
  const json merged = json::parse(merged_timeline({rank_events(trace, {.rank = 0, .node = "n1"}),
                                                   rank_events(trace, {.rank = 1, .node = "n1"})}));
  std::map<int64_t, std::string> phases;
  for (const json& event : merged["traceEvents"])
    if (event.contains("id")) phases[event["id"]] += event["ph"];
  EXPECT_THAT(phases, ElementsAre(Pair(0, "sf"), Pair(1, "sf")));
}

TEST(Timeline, ThreadsAndStreamsHaveNames) {
  std::map<int64_t, std::string> names;
  for (const json& event : events_of(some_trace()))
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
  EXPECT_THAT(names, ElementsAre(Pair(5, "main"), Pair(6, "thread 6"), Pair(7, "GPU stream 7"),
                                 Pair(8, "all-reduce")));
}

}  // namespace timeline_test
}  // namespace lockstep::train
