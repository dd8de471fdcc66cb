#include "metrics/step_metrics.h"

#include <deque>

#include <fmt/format.h>

#include "base/error.h"
#include "metrics/series.h"
#include "metrics/unix_time.h"

namespace lockstep::metrics {
namespace {

using Kind = StepMetric::Kind;
using Scope = StepMetric::Scope;

/// A number of the step as it is.
template <auto member>
StepMetric row(const char* name, Kind kind, Scope scope, const char* help) {
  return {name, help, kind, scope, [](const StepSample& step) -> std::optional<double> {
            using Member = std::remove_cvref_t<decltype(step.*member)>;
            if constexpr (std::is_same_v<Member, std::optional<double>>)
              return step.*member;
            else
              return static_cast<double>(step.*member);
          }};
}

NamedTable<StepMetric> own_metrics() {
  constexpr Kind counter = StepMetric::kCounter, gauge = StepMetric::kGauge;
  constexpr Scope rank = StepMetric::kRank, run = StepMetric::kRun;
  using S = StepSample;
  NamedTable<StepMetric> all("metric");
  all.add({"lockstep_steps_total", "Optimizer steps done by this process.", counter, rank,
           [](const S&) { return 1; }});
  all.add(row<&S::num_samples>("lockstep_samples_total", counter, rank,
                               "Samples this rank trained on."));
  all.add(row<&S::num_skipped_samples>("lockstep_skipped_samples_total", counter, rank,
                                       "Damaged samples of this rank that were skipped."));
  all.add({"lockstep_last_step_timestamp_seconds",
           "When the last step ended, in seconds since 1970.", gauge, rank,
           [](const S&) { return unix_time_s(); }});
  all.add(row<&S::nonfinite>("lockstep_nonfinite_steps_total", counter, rank,
                             "Steps whose update was skipped for NaN or Inf."));
  all.add(row<&S::bytes_reduced>("lockstep_allreduce_bytes_total", counter, rank,
                                 "Payload handed to all-reduce."));
  all.add(row<&S::bytes_saved>("lockstep_allreduce_saved_bytes_total", counter, rank,
                               "Payload left out by packing and narrower types."));
  all.add(row<&S::bytes_sent>("lockstep_allreduce_sent_bytes_total", counter, rank,
                              "Least that this rank had to send to reduce its payload."));
  all.add(row<&S::allreduce_s>("lockstep_allreduce_seconds_total", counter, rank,
                               "Seconds inside all-reduces of gradients, hidden or not."));
  all.add(row<&S::allreduce_overlapped_s>("lockstep_allreduce_overlapped_seconds_total", counter,
                                          rank,
                                          "Seconds inside all-reduces hidden behind backward."));
  all.add(
      row<&S::allreduce_exposed_s>("lockstep_allreduce_exposed_seconds_total", counter, rank,
                                   "Seconds waited for all-reduce, not hidden behind backward."));
  all.add(row<&S::bytes_gathered>("lockstep_gather_bytes_total", counter, rank,
                                  "Values all-gathered after updates, of all ranks together."));
  all.add(row<&S::gather_s>("lockstep_gather_seconds_total", counter, rank,
                            "Seconds inside all-gathers of values."));
  all.add(row<&S::loss>("lockstep_train_loss", gauge, run,
                        "Last logged training loss, mean over ranks."));
  all.add(row<&S::gradient_norm>(
      "lockstep_gradient_norm", gauge, run,
      "Length of the last update's mean gradient, before clipping by norm."));
  all.add(row<&S::loss_scale>("lockstep_loss_scale", gauge, run,
                              "What the last step's losses were multiplied by."));
  return all;
}

}  // namespace

NamedTable<StepMetric>& step_metrics() {
  static NamedTable<StepMetric> all = own_metrics();
  return all;
}

struct StepSeries::Series {
  struct OneCounter {
    StepMetric metric;
    prometheus::Counter& counter;
  };
  struct OneGauge {
    StepMetric metric;
    OptionalGauge gauge;
  };

  void add(prometheus::Registry& registry, const StepMetric& metric) {
    const char *name = metric.name.c_str(), *help = metric.help.c_str();
    if (metric.kind == StepMetric::kCounter)
      counters.push_back({metric, counter(registry, name, help)});
    else
      gauges.push_back({metric, OptionalGauge(registry, name, help)});
  }

  std::deque<OneCounter> counters;
  std::deque<OneGauge> gauges;
};

StepSeries::StepSeries(prometheus::Registry& registry, bool is_root,
                       const NamedTable<StepMetric>& table)
    : series_(std::make_unique<Series>()) {
  for (const StepMetric* metric : table.rows()) {
    if (metric->scope == StepMetric::kRun && !is_root) continue;
    try {
      series_->add(registry, *metric);
    } catch (const std::exception& error) {  // Prometheus' library throws its own
      throw Error(ExitCode::kConfig, "metrics", fmt::format("{}: {}", metric->name, error.what()));
    }
  }
}

StepSeries::~StepSeries() = default;

void StepSeries::record(const StepSample& step) {
  for (const auto& [metric, counter] : series_->counters)
    if (const std::optional<double> added = metric.value(step)) counter.Increment(*added);
  for (auto& [metric, gauge] : series_->gauges)
    if (const std::optional<double> value = metric.value(step)) gauge.set(*value);
}

}  // namespace lockstep::metrics
