// The golden traces T1 to T8 of the recipe grammar, in one table. Expected values are written out,
// not computed by the code under test.
#include <cmath>

#include <gmock/gmock.h>

#include "recal/recipe/recipe_reader.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace golden_traces_test {

using Values = std::vector<std::pair<double, double>>;  // at an epoch

struct Trace {
  std::string name;
  std::vector<std::string> items;
  int64_t steps_per_epoch = 10;
  Values sparsities, rates;
  std::vector<int64_t> masks;  ///< steps of all of them
  std::optional<int64_t> total_steps, max_epochs;
};

std::string pruning(double start, double end, double frequency, const std::string& more = "") {
  return fmt::format(
      "!GradualKSModifier {{params: __ALL__, init_sparsity: 0.05, final_sparsity: 0.8, "
      "start_epoch: {}, end_epoch: {}, update_frequency: {}{}}}",
      start, end, frequency, more);
}
std::string rate(double end, const std::string& lr_class, const std::string& kwargs) {
  return fmt::format(
      "!LearningRateModifier {{start_epoch: 0.0, end_epoch: {}, lr_class: {}, lr_kwargs: {}, "
      "init_lr: 0.1}}",
      end, lr_class, kwargs);
}
std::string range(double end) {
  return fmt::format("!EpochRangeModifier {{start_epoch: 0.0, end_epoch: {}}}", end);
}

const Values kLinear{{0, 0.05}, {1, 0.20}, {2, 0.35}, {3, 0.50}, {4, 0.65}, {5, 0.80}, {9, 0.80}};
const Values kCubic{{0, 0.05},  {0.9, 0.05}, {1, 0.416}, {2, 0.638},
                    {3, 0.752}, {4, 0.794},  {5, 0.80},  {9, 0.80}};
// 0.05 + 0.75 (1 - (1 - t)^(1/3))
const Values kInverseCubic{{0, 0.05}, {1, 0.103761}, {3, 0.247396}, {4, 0.361397}, {5, 0.80}};

const std::vector<Trace>& traces() {
  static const std::vector<Trace> table{
      {.name = "T1Linear",
       .items = {pruning(0, 5, 1, ", inter_func: linear")},
       .sparsities = kLinear,
       .masks = {0, 10, 20, 30, 40, 50}},
      {.name = "T1Cubic",
       .items = {pruning(0, 5, 1, ", inter_func: cubic")},
       .sparsities = kCubic,
       .masks = {0, 10, 20, 30, 40, 50}},
      {.name = "T1DefaultIsCubicWhateverTheStepsPerEpoch",
       .items = {pruning(0, 5, 1)},
       .steps_per_epoch = 20,
       .sparsities = kCubic},
      {.name = "T1InverseCubic",
       .items = {pruning(0, 5, 1, ", inter_func: inverse_cubic")},
       .sparsities = kInverseCubic},
      {.name = "T2WholeFileCubic",
       .items = {range(25), pruning(5, 20, 1)},
       .steps_per_epoch = 4,
       .sparsities = {{0, 0},
                      {4.75, 0},
                      {5, 0.05},
                      {6, 0.190222},
                      {10, 0.577778},
                      {15, 0.772222},
                      {19, 0.799778},
                      {20, 0.8},
                      {24, 0.8}},
       .masks = {20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 68, 72, 76, 80},
       .total_steps = 100,
       .max_epochs = 25},
      {.name = "T2WholeFileLinear",
       .items = {range(25), pruning(5, 20, 1, ", inter_func: linear")},
       .steps_per_epoch = 4,
       .sparsities = {{5, 0.05}, {6, 0.10}, {10, 0.30}, {19, 0.75}, {20, 0.8}}},
      {.name = "T3MultiStep",
       .items = {rate(25, "MultiStepLR", "{'gamma': 0.9, 'milestones': [2.0, 5.5, 10.0]}")},
       .rates = {{0, 0.1},
                 {1.9, 0.1},
                 {2, 0.09},
                 {5.4, 0.09},
                 {5.5, 0.081},
                 {9.9, 0.081},
                 {10, 0.0729},
                 {25, 0.0729},
                 {99, 0.0729}}},
      {.name = "T4Step",
       .items = {rate(10, "StepLR", "{'gamma': 0.9, step: 2.0}")},
       .rates = {{0, 0.1},
                 {1.9, 0.1},
                 {2, 0.09},
                 {4, 0.081},
                 {6, 0.0729},
                 {8, 0.06561},
                 {9.9, 0.06561},
                 {20, 0.06561}}},
      {.name = "T5Exponential",
       .items = {rate(5, "ExponentialLR", "{'gamma': 0.9}")},
       .rates = {{0, 0.1},
                 {0.9, 0.1},
                 {1, 0.09},
                 {2, 0.081},
                 {3, 0.0729},
                 {4, 0.06561},
                 {4.9, 0.06561},
                 {5, 0.06561}}},
      {.name = "T6AStartBetweenWholeEpochs", .items = {pruning(2.5, 3.5, 1)}, .masks = {25, 35}},
      {.name = "T6HalfEpochsOfTenSteps",
       .items = {pruning(0, 2, 0.5)},
       .masks = {0, 5, 10, 15, 20}},
      {.name = "T6HalfEpochsOfSevenSteps",
       .items = {pruning(0, 2.2, 0.5)},
       .steps_per_epoch = 7,
       .masks = {0, 4, 7, 11, 14, 16}},
      {.name = "T6NoRunningSum",
       .items = {pruning(0, 2.1, 0.3)},
       .masks = {0, 3, 6, 9, 12, 15, 18, 21}},
      {.name = "T6NoBinaryFractions",
       .items = {pruning(1.1, 2.2, 1)},
       .steps_per_epoch = 100,
       .masks = {110, 210, 220}},
      {.name = "T7Floor55000", .items = {range(25)}, .steps_per_epoch = 53, .total_steps = 1325},
      {.name = "T7Ceil55000", .items = {range(25)}, .steps_per_epoch = 54, .total_steps = 1350},
      {.name = "T7Floor60000", .items = {range(25)}, .steps_per_epoch = 58, .total_steps = 1450},
      {.name = "T7Ceil60000", .items = {range(25)}, .steps_per_epoch = 59, .total_steps = 1475},
      {.name = "T8Widening",
       .items = {range(25), pruning(0, 30, 1)},
       .total_steps = 300,
       .max_epochs = 30},
  };
  return table;
}

class GoldenTrace : public ::testing::TestWithParam<Trace> {};

TEST_P(GoldenTrace, HoldsAtEveryStep) {
  const Trace& trace = GetParam();
  const Timeline timeline = compiled(recipe_of(trace.items), trace.steps_per_epoch, 7.0);
  const auto step_at = [&](double epoch) {
    return std::llround(epoch * static_cast<double>(trace.steps_per_epoch));
  };
  for (const auto& [epoch, sparsity] : trace.sparsities)
    EXPECT_NEAR(timeline.target_sparsity_at(step_at(epoch)), sparsity, 1e-6) << "epoch " << epoch;
  for (const auto& [epoch, learning_rate] : trace.rates)
    EXPECT_NEAR(timeline.learning_rate_at(step_at(epoch)), learning_rate, 1e-12)
        << "epoch " << epoch;
  EXPECT_EQ(trace.masks.empty() ? trace.masks : steps_of(timeline, ActionKind::kPrune),
            trace.masks);
  EXPECT_EQ(timeline.total_steps(), trace.total_steps.value_or(*timeline.total_steps()));
  EXPECT_EQ(timeline.max_epochs(), trace.max_epochs.value_or(*timeline.max_epochs()));
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTrace, ::testing::ValuesIn(traces()),
                         [](const auto& row) { return row.param.name; });

TEST(Golden, TheShippedRecipePrunesAllLayersBetweenEpochs5And20) {
  Diagnostics faults;
  const Recipe recipe = load_recipe(LOCKSTEP_SOURCE_DIR "/configs/prune_all.yaml", &faults);
  const Timeline timeline = Timeline::compile(
      recipe, {.steps_per_epoch = 4, .base_learning_rate = 0.1, .params = small_network()},
      &faults);
  ASSERT_TRUE(faults.empty()) << faults.text();
  EXPECT_EQ(timeline.max_epochs(), 25);
  EXPECT_EQ(timeline.total_steps(), 100);
  std::vector<int64_t> expected;
  for (int64_t epoch = 5; epoch <= 20; ++epoch) expected.push_back(4 * epoch);
  EXPECT_EQ(steps_of(timeline, ActionKind::kPrune), expected);
  EXPECT_EQ(timeline.actions().size(), expected.size());  // nothing else happens
  EXPECT_EQ(
      timeline.param_sets()[0].names,
      (std::vector<std::string>{"blocks.0.conv.weight", "blocks.1.conv.weight", "head.weight"}));
  // 0.8 - 0.75 (1 - t)^3 at t = 1/15, 5/15, 10/15, 14/15
  for (const auto& [epoch, sparsity] : Values{{4, 0},
                                              {5, 0.05},
                                              {6, 0.190222},
                                              {10, 0.577778},
                                              {15, 0.772222},
                                              {19, 0.799778},
                                              {20, 0.8},
                                              {24, 0.8}})
    EXPECT_NEAR(timeline.target_sparsity_at(static_cast<int64_t>(4 * epoch)), sparsity, 1e-6);
}

}  // namespace golden_traces_test
}  // namespace lockstep::recal
