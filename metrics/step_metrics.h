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

/// Table of the Prometheus series that are derived from a step's numbers.
namespace lockstep::metrics {

/// Metric of steps: one row of the table, one series of the page. To add one:
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
    kRank,  ///< exported by every rank
    kRun,   ///< exported by rank 0 only: equal on all ranks
  };

  std::string name;  ///< with its unit; a counter ends in _total
  std::string help;
  Kind kind = kGauge;
  Scope scope = kRank;
  /// Counter: returns the increment of the step, at least 0; the counter starts at 0. Gauge:
  /// returns its value; it is absent until the first one. nullopt: no change. The training thread
  /// calls it after each step. It must not throw.
  std::function<std::optional<double>(const StepSample& step)> value;
};

/// Returns the table; Lockstep's own series are its first rows.
NamedTable<StepMetric>& step_metrics();

/// Series of a table in a registry. Threads: one records, any may collect the registry.
class StepSeries {
 public:
  /// Registers the series; those of kRun only if is_root. Throws Error(kConfig) for a name that
  /// Prometheus refuses or another part has already used.
  StepSeries(prometheus::Registry& registry, bool is_root,
             const NamedTable<StepMetric>& table = step_metrics());
  ~StepSeries();

  void record(const StepSample& step);

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace lockstep::metrics
