#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "base/log.h"
#include "coord/callback.h"
#include "coord/callbacks_handler.h"
#include "coord/eval_metric.h"
#include "coord/recording_callback.h"
#include "metrics/tensorboard/event_file.h"
#include "support/temporary_folder.h"

namespace lockstep::coord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

/// The mean of x.
EvalMetric mean_of_x() {
  return {.incoming_keys = {"x"},
          .num_sums = 2,
          .sums =
              [](const DataMap& data) {
                const at::Tensor& x = data.tensor("x");
                return at::tensor({x.sum().item<double>(), static_cast<double>(x.numel())});
              },
          .values = [](const at::Tensor& sums_S) -> std::vector<EvalValue> {
            return {{"mean", sums_S[0] / sums_S[1]}};
          }};
}

/// A handler with the one KPI, and what it showed.
struct Judging {
  explicit Judging(CallbackContext context, Services services = {}) {
    services.set_kpi = [this](const std::string& name, double value) {
      shown.emplace_back(name, value);
    };
    auto callback = std::make_unique<KpiEvaluator>(mean_of_x(), services);
    kpi = callback.get();
    std::vector<NamedCallback> callbacks;
    callbacks.push_back({"mean", std::move(callback)});
    handler = std::make_unique<CallbacksHandler>(std::move(callbacks),
                                                 std::vector<std::string>{"x"}, std::move(context));
    handler->begin();
  }

  void iterate(int64_t number, std::vector<double> x) const {
    handler->context().iteration_info.iteration_number = number;
    handler->context().summary_step = 80 + number;
    DataMap data;
    data.put("x", at::tensor(x));
    handler->on_iteration_end(data);
  }

  std::vector<std::pair<std::string, double>> shown;
  const KpiEvaluator* kpi = nullptr;
  std::unique_ptr<CallbacksHandler> handler;
};

TEST(KpiEvaluator, N52_sums_and_counts_over_an_epoch) {
  Judging judging({.mode = Mode::kTrain, .number_iterations_per_epoch = 2});
  judging.iterate(0, {1, 2});
  EXPECT_THAT(judging.shown, ElementsAre());
  judging.iterate(1, {6});
  EXPECT_THAT(judging.shown, ElementsAre(Pair("mean", 3)));
  judging.iterate(2, {10});
  judging.handler->end();
  EXPECT_THAT(judging.shown, ElementsAre(Pair("mean", 3), Pair("mean", 10)));
  EXPECT_THAT(judging.kpi->values(), ElementsAre(Pair("mean", 10)));
}

TEST(KpiEvaluator, N52_two_ranks_give_what_one_gives) {
  Services services;  // the other rank has seen 5, 5, 5 in one iteration
  services.sum_over_ranks = [](std::span<double> sums) {
    const double other[] = {15, 3, 1};
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += other[i];
  };
  Judging judging({.mode = Mode::kEval, .rank = 1, .world_size = 2}, services);
  judging.iterate(0, {1});
  judging.handler->end();
  EXPECT_THAT(judging.kpi->values(), ElementsAre(Pair("mean", 4)));
  Judging without({.mode = Mode::kEval, .rank = 1, .world_size = 2}, services);
  without.handler->end();  // this rank has no sample, and takes part
  EXPECT_THAT(without.kpi->values(), ElementsAre(Pair("mean", 5)));
}

TEST(KpiEvaluator, An_evaluation_that_a_stop_breaks_off_shows_nothing) {
  Judging judging({.mode = Mode::kEval});
  judging.iterate(0, {1});
  judging.handler->end(/*is_broken_off=*/true);
  EXPECT_THAT(judging.shown, ElementsAre());
  judging.handler->begin();
  judging.iterate(0, {5});
  judging.handler->end();
  EXPECT_THAT(judging.shown, ElementsAre(Pair("mean", 5)));
}

TEST(KpiEvaluator, Nothing_is_shown_of_what_a_fault_ended) {
  for (const Mode mode : {Mode::kTrain, Mode::kEval, Mode::kInfer}) {
    Judging judging({.mode = mode});
    judging.iterate(0, {1});
    judging.handler->end_after_fault();
    EXPECT_THAT(judging.shown, ElementsAre()) << mode_name(mode);
    judging.handler->begin();  // what is whole again is shown again
    judging.iterate(0, {5});
    judging.handler->end();
    EXPECT_THAT(judging.shown, ElementsAre(Pair("mean", 5))) << mode_name(mode);
  }
}

TEST(KpiEvaluator, N26_an_epoch_ends_where_its_last_iteration_was_halted_too) {
  std::vector<std::pair<std::string, double>> shown;
  Services services;
  int num_joined = 0;
  services.sum_over_ranks = [&](std::span<double>) { ++num_joined; };
  services.set_kpi = [&](const std::string& name, double value) {
    shown.emplace_back(name, value);
  };
  std::vector<NamedCallback> callbacks =
      tests::recording({{.name = "maker",
                         .incoming = {"y"},
                         .generated = {"x"},
                         .run_on = RunOn::kAll,
                         .on_end = [](const DataMap& data) -> std::optional<DataMap> {
                           if (data.tensor("y").item<double>() == 0) return std::nullopt;
                           DataMap made;
                           made.put("x", data.tensor("y"));
                           return made;
                         }}});
  callbacks.push_back({"mean", std::make_unique<KpiEvaluator>(mean_of_x(), services)});
  CallbacksHandler handler(std::move(callbacks), {"y"},
                           {.mode = Mode::kTrain, .number_iterations_per_epoch = 2});
  handler.begin();
  for (int64_t i = 0; i < 4; ++i) {  // the second and the fourth are halted
    handler.context().iteration_info.iteration_number = i;
    DataMap data;
    data.put("y", at::tensor({i % 2 == 0 ? 3. + static_cast<double>(i) : 0.}));
    handler.on_iteration_end(data);
    EXPECT_EQ(num_joined, (i + 1) / 2);
  }
  EXPECT_THAT(shown, ElementsAre(Pair("mean", 3), Pair("mean", 5)));
}

TEST(KpiEvaluator, No_iteration_gives_no_value) {
  Judging judging({.mode = Mode::kInfer});
  judging.handler->end();
  EXPECT_THAT(judging.shown, ElementsAre());
}

TEST(KpiEvaluator, N53_a_warning_in_training) {
  for (const Mode mode : {Mode::kTrain, Mode::kEval, Mode::kInfer}) {
    const int64_t before = log::num_lines(log::Level::kWarning);
    const Judging judging({.mode = mode});
    EXPECT_EQ(log::num_lines(log::Level::kWarning) - before, mode == Mode::kTrain ? 1 : 0);
  }
}

TEST(KpiEvaluator, N54_tag_in_TensorBoard) {
  const tests::TemporaryFolder folder;
  metrics::EventFile events({.folder = folder.path(), .node = "n", .resumed_step = {}});
  Judging judging({.mode = Mode::kEval, .summary_writer = &events});
  judging.iterate(19, {2});
  judging.handler->end();
  events.flush();
  ASSERT_TRUE(events.drain(std::chrono::seconds(20)));
  const std::string bytes = files::read(folder.path() / files::list(folder.path()).at(0));
  EXPECT_THAT(bytes, HasSubstr("kpi/mean"));
  EXPECT_THAT(bytes,
              HasSubstr(std::string("\x10\x63", 2)));  // field step: 99, that of iteration 19
}

TEST(SummaryClock, N65_N66_last_steps_of_training_and_evaluation_share_a_number) {
  const int64_t num_train = 100, num_eval = 20;
  EXPECT_EQ(SummaryClock::eval_step(num_train, num_eval, 0), 81);  // 80 later than training's 1
  EXPECT_EQ(SummaryClock::eval_step(num_train, num_eval, num_eval - 1),
            SummaryClock::train_step(num_train));
  EXPECT_EQ(SummaryClock::eval_step(2 * num_train, num_eval, 0), 181);  // the second epoch's
}

}  // namespace
}  // namespace lockstep::coord
