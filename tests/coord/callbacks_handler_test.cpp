#include "coord/callbacks_handler.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coord/recording_callback.h"

namespace lockstep::coord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::Calls;
using tests::fault_of;
using tests::recording;
using tests::RecordingCallback;

DataMap with_x() {
  DataMap data;
  data.put("x", at::ones({2, 3}));
  return data;
}

/// Error of a callback that throws or misbehaves in iteration 7.
std::string fault_in_iteration(RecordingCallback::Options options) {
  CallbacksHandler handler(recording({std::move(options)}), {"x"}, {});
  handler.context().iteration_info.iteration_number = 7;
  return fault_of([&] { handler.on_iteration_end(with_x()); });
}

TEST(CallbacksHandler, N56_order_of_calls) {
  Calls calls;
  CallbacksHandler handler(
      recording({{.name = "b", .generated = {"p"}}, {.name = "a", .incoming = {"p"}}}, &calls), {},
      {});
  handler.begin();
  for (int i = 0; i < 2; ++i) handler.on_iteration_start(), handler.on_iteration_end({});
  handler.end();
  EXPECT_THAT(calls,
              ElementsAre("b.begin", "a.begin", "b.start", "a.start", "b.iteration", "a.iteration",
                          "b.start", "a.start", "b.iteration", "a.iteration", "b.end", "a.end"));
}

TEST(CallbacksHandler, N26_none_halts_dependents) {
  Calls calls;
  int num_collected = 0;
  const auto collect = [&](const DataMap&) -> std::optional<DataMap> {
    if (++num_collected % 3 != 0) return std::nullopt;
    DataMap made;
    made.put("three", at::ones({3}));
    return made;
  };
  CallbacksHandler handler(
      recording({{.name = "collector", .generated = {"three"}, .on_end = collect},
                 {.name = "direct", .incoming = {"three"}, .generated = {"more"}},
                 {.name = "further", .incoming = {"more"}},
                 {.name = "optional", .incoming = {"_three"}},
                 {.name = "unrelated"}},
                &calls),
      {}, {});
  for (int i = 0; i < 7; ++i) handler.on_iteration_end({});
  const auto count = [&](const char* name) { return std::count(calls.begin(), calls.end(), name); };
  EXPECT_EQ(count("collector.iteration"), 7);
  EXPECT_EQ(count("unrelated.iteration"), 7);
  EXPECT_EQ(count("direct.iteration"), 2);
  EXPECT_EQ(count("further.iteration"), 2);
  EXPECT_EQ(count("optional.iteration"), 2);
}

TEST(CallbacksHandler, N12_a_callback_gets_what_it_declared_and_no_more) {
  std::vector<std::string> seen;
  const auto look = [&](const DataMap& data) {
    for (const auto& [key, value] : data.values()) seen.push_back(key);
    return DataMap();
  };
  CallbacksHandler handler(
      recording({{.name = "a", .incoming = {"x", "_mask", "_none"}, .on_end = look}}),
      {"x", "y", "_mask", "_none"}, {});
  DataMap data = with_x();
  data.put("y", at::ones({1}));
  data.put("mask", at::ones({1}));
  const DataMap all = handler.on_iteration_end(data);
  EXPECT_THAT(seen, ElementsAre("mask", "x"));
  EXPECT_TRUE(all.contains("y"));
}

TEST(CallbacksHandler, N7_reading_an_undeclared_key_is_an_error) {
  EXPECT_EQ(fault_in_iteration({.name = "a",
                                .on_end =
                                    [](const DataMap& data) {
                                      data.tensor("x");
                                      return DataMap();
                                    }}),
            "65 [callbacks] no key 'x': a callback gets the keys that its incoming_keys() declare, "
            "and optional ones if present (callback 'a', iteration 7)");
}

TEST(CallbacksHandler, N8_what_is_returned_is_what_is_declared) {
  const auto make_x2 = [](const DataMap&) {
    DataMap made;
    made.put("x2", at::ones({1}));
    return made;
  };
  EXPECT_EQ(fault_in_iteration({.name = "a", .on_end = make_x2}),
            "65 [callbacks] returned key 'x2', which its generated_keys() do not declare (callback "
            "'a', iteration 7)");
  EXPECT_THAT(fault_in_iteration({.name = "a", .generated = {"x2", "x3"}, .on_end = make_x2}),
              HasSubstr("did not return key 'x3'"));
  EXPECT_EQ(fault_in_iteration({.name = "a", .generated = {"x2", "_x3"}, .on_end = make_x2}), "");
}

TEST(CallbacksHandler, N6_an_optional_key_that_was_not_made_is_missed_by_who_needs_it) {
  CallbacksHandler handler(
      recording(
          {{.name = "a", .generated = {"_p"}, .on_end = [](const DataMap&) { return DataMap(); }},
           {.name = "b", .incoming = {"p"}}}),
      {}, {});
  EXPECT_EQ(fault_of([&] { handler.on_iteration_end({}); }),
            "65 [callbacks] key 'p' is missing; to make it optional, read '_p' (callback 'b', "
            "iteration 0)");
}

TEST(CallbacksHandler, What_a_callback_throws_gets_its_name) {
  const auto fail = [](const DataMap&) -> std::optional<DataMap> { throw std::out_of_range("no"); };
  EXPECT_EQ(fault_in_iteration({.name = "a", .on_end = fail}),
            "70 [callbacks] callback 'a', iteration 7: no");
  const auto refuse = [](const DataMap&) -> std::optional<DataMap> {
    throw Error(ExitCode::kIo, "disk", "is full");
  };
  EXPECT_EQ(fault_in_iteration({.name = "a", .on_end = refuse}),
            "74 [disk] is full (callback 'a', iteration 7)");
}

/// Fails in its last call.
class FailingEnd : public RecordingCallback {
 public:
  using RecordingCallback::RecordingCallback;
  void end() override {
    RecordingCallback::end();
    throw Error(ExitCode::kIo, "disk", "is full");
  }
};

TEST(CallbacksHandler, N10_all_are_ended_where_one_throws) {
  Calls calls;
  auto callbacks = recording({{.name = "b"}}, &calls);
  callbacks.push_back(
      {"a", std::make_unique<FailingEnd>(RecordingCallback::Options{.name = "a"}, &calls)});
  CallbacksHandler handler(std::move(callbacks), {}, {});
  handler.begin();
  EXPECT_THAT(fault_of([&] { handler.end(); }), HasSubstr("is full (callback 'a'"));
  EXPECT_THAT(calls, ElementsAre("a.begin", "b.begin", "a.end", "b.end"));
  handler.end();  // no second time
  EXPECT_EQ(calls.size(), 4);
}

TEST(CallbacksHandler, N2_N14_ranks_and_their_folders) {
  for (const int rank : {0, 1}) {
    Calls calls;
    auto callbacks = recording({{.name = "all", .run_on = RunOn::kAll}, {.name = "one"}}, &calls);
    const auto* all = static_cast<RecordingCallback*>(callbacks[0].callback.get());
    const auto* one = static_cast<RecordingCallback*>(callbacks[1].callback.get());
    CallbacksHandler handler(std::move(callbacks), {},
                             {.log_dir = "log", .rank = rank, .world_size = 2});
    handler.context().summary_step = 5;
    handler.on_iteration_end({});
    EXPECT_EQ(calls.size(), rank == 0 ? 2 : 1) << "rank " << rank;
    EXPECT_EQ(calls[0], "all.iteration");
    EXPECT_EQ(all->seen().log_dir, rank == 0 ? "log/rank_000" : "log/rank_001");
    EXPECT_EQ(all->seen().summary_step, 5);
    EXPECT_EQ(one->seen().log_dir, "log");
  }
}

TEST(CallbacksHandler, N4_N22_N23_one_class_sees_every_field_in_each_mode) {
  for (const Mode mode : {Mode::kTrain, Mode::kEval, Mode::kInfer}) {
    auto callbacks = recording({{.name = "a"}});
    const auto* seen = static_cast<RecordingCallback*>(callbacks[0].callback.get());
    CallbacksHandler handler(std::move(callbacks), {}, {.mode = mode, .log_dir = "log"});
    handler.context().number_iterations_per_epoch = 4;
    handler.context().iteration_info = {2, 9, 0.5, true};
    handler.on_iteration_start();
    EXPECT_EQ(seen->seen().mode, mode);
    EXPECT_EQ(seen->seen().is_training(), mode == Mode::kTrain);
    EXPECT_EQ(seen->seen().number_iterations_per_epoch, 4);
    EXPECT_EQ(seen->seen().iteration_info.epoch_number, 2);
    EXPECT_EQ(seen->seen().iteration_info.iteration_number, 9);
    EXPECT_EQ(seen->seen().iteration_info.execution_time, 0.5);
    EXPECT_TRUE(seen->seen().iteration_info.is_last_iteration);
    EXPECT_EQ(seen->seen().summary_writer, nullptr);
  }
}

TEST(CallbacksHandler, Values_know_their_kind) {
  DataMap data = with_x();
  data.put("inner", std::make_shared<const DataMap>(with_x()));
  EXPECT_EQ(data.map("inner").tensor("x").numel(), 6);
  EXPECT_EQ(fault_of([&] { data.texts("x"); }),
            "65 [callbacks] key 'x' is a tensor, expected strings");
}

}  // namespace
}  // namespace lockstep::coord
