#include "metrics/step_metrics.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "base/error.h"

namespace lockstep::metrics {
namespace step_metrics_test {

using ::testing::HasSubstr;
using ::testing::Not;

std::string page_of(const prometheus::Registry& registry) {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, registry.Collect());
  return text.str();
}

prometheus::Registry strict_registry() {
  return prometheus::Registry(prometheus::Registry::InsertBehavior::Throw);
}

NamedTable<StepMetric> table_of(std::initializer_list<StepMetric> rows) {
  NamedTable<StepMetric> table("metric");
  for (const StepMetric& row : rows) table.add(row);
  return table;
}

const StepMetric kAdded{.name = "own_samples_total",
                        .help = "Samples.",
                        .kind = StepMetric::kCounter,
                        .value = [](const StepSample& step) { return step.num_samples; }};
const StepMetric kLoss{.name = "own_loss",
                       .help = "Loss.",
                       .scope = StepMetric::kRun,
                       .value = [](const StepSample& step) { return step.loss; }};

TEST(StepMetrics, CountersAddUpAndGaugesShowTheLastValue) {
  const NamedTable<StepMetric> table = table_of({kAdded, kLoss});
  prometheus::Registry registry = strict_registry();
  StepSeries series(registry, /*is_root=*/true, table);
  EXPECT_THAT(page_of(registry), HasSubstr("\nown_samples_total 0\n"));
  EXPECT_THAT(page_of(registry), Not(HasSubstr("\nown_loss "))) << "0 would be a wrong loss";

  series.record({.num_samples = 30, .loss = 0.5});
  series.record({.num_samples = 12, .loss = 0.25});
  series.record({.num_samples = 0, .loss = std::nullopt});
  EXPECT_THAT(page_of(registry), HasSubstr("\nown_samples_total 42\n"));
  EXPECT_THAT(page_of(registry), HasSubstr("\nown_loss 0.25\n"));
  EXPECT_THAT(page_of(registry), HasSubstr("# TYPE own_samples_total counter\n"));
  EXPECT_THAT(page_of(registry), HasSubstr("# HELP own_loss Loss.\n"));
}

TEST(StepMetrics, WhatIsEqualOnAllRanksComesFromRankZero) {
  const NamedTable<StepMetric> table = table_of({kAdded, kLoss});
  prometheus::Registry registry = strict_registry();
  StepSeries series(registry, /*is_root=*/false, table);
  series.record({.num_samples = 1, .loss = 0.5});
  EXPECT_THAT(page_of(registry), HasSubstr("own_samples_total 1"));
  EXPECT_THAT(page_of(registry), Not(HasSubstr("own_loss")));
}

TEST(StepMetrics, ANameThatCannotBeIsRefusedWithTheName) {
  for (const char* name :
       {"own loss", "1st", "own_samples_total", "lockstep_step_duration_seconds"}) {
    StepMetric bad = kLoss;
    bad.name = name;
    prometheus::Registry registry = strict_registry();
    StepSeries taken(registry, true, table_of({kAdded}));
    try {
      StepSeries series(registry, true, table_of({bad}));
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  }
}

}  // namespace step_metrics_test
}  // namespace lockstep::metrics
