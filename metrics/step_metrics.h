#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/named_table.h"
#include "metrics/samples.h"

namespace prometheus {
class Registry;
}

/// Table of the Prometheus series that follow from a step's numbers.
namespace lockstep::metrics {

/// A metric of steps: one row of the table, one series of the page. To add one:
///
///   step_metrics().add({.name = "my_perplexity",
///                       .help = "Exponential of the last training loss.",
///                       .kind = StepMetric::kGauge,
///                       .scope = StepMetric::kRun,
///                       .value = [](const StepSample& step) -> std::optional<double> {
///                         if (!step.loss) return std::nullopt;
///                         return std::exp(*step.loss);
///                       }});
struct StepMetric {
  enum Kind { kCounter, kGauge };
  enum Scope {
    kRank,  ///< shown by every rank
    kRun,   ///< shown by rank 0 alone: equal on all ranks
  };

  std::string name;  ///< with its unit; a counter ends in _total
  std::string help;
  Kind kind = kGauge;
  Scope scope = kRank;
  /// Counter: what the step adds, at least 0; begins at 0. Gauge: its value; absent until the first
  /// one. Nothing: no change. Called after each step by the thread that trains; must not throw.
  std::function<std::optional<double>(const StepSample& step)> value;
};

/// The table; Lockstep's own series are its first rows.
NamedTable<StepMetric>& step_metrics();

/// The series of a table in a registry. Threads: one records, any may collect the registry.
class StepSeries {
 public:
  /// Those of kRun only where is_root. Throws Error(kConfig) for a name that Prometheus refuses or
  /// that another part has given away.
  StepSeries(prometheus::Registry& registry, bool is_root,
             const NamedTable<StepMetric>& table = step_metrics());
  ~StepSeries();

  void record(const StepSample& step);

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace lockstep::metrics
