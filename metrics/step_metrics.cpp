#include "metrics/step_metrics.h"

#include <deque>

#include <fmt/format.h>

#include "base/error.h"
#include "metrics/series.h"

// Lockstep's own rows come first. Rows that plug-ins add work in the same way.
namespace lockstep::metrics {
namespace {

using Value = std::function<std::optional<double>(const StepSample& step)>;

/// Row whose kind, scope and help are in the table of all series.
StepMetric row(const char* name, Value value) {
  const SeriesInfo& info = series_info(name);
  return {name, info.help,
          info.kind == SeriesInfo::kCounter ? StepMetric::kCounter : StepMetric::kGauge,
          is_run_series(name) ? StepMetric::kRun : StepMetric::kRank, std::move(value)};
}

/// Row for a number of the step, unchanged.
template <auto member>
StepMetric number(const char* name) {
  return row(name, [](const StepSample& step) -> std::optional<double> {
    using Member = std::remove_cvref_t<decltype(step.*member)>;
    if constexpr (std::is_same_v<Member, std::optional<double>>)
      return step.*member;
    else
      return static_cast<double>(step.*member);
  });
}

/// Returns Lockstep's own rows. Their help texts are in metrics/series_table.cpp.
NamedTable<StepMetric> own_metrics() {
  using S = StepSample;
  NamedTable<StepMetric> all("metric");
  all.add(row("lockstep_steps_total", [](const S&) { return 1; }));
  all.add(number<&S::num_samples>("lockstep_samples_total"));
  all.add(number<&S::num_skipped_samples>("lockstep_skipped_samples_total"));
  all.add(number<&S::num_records>("lockstep_data_records_total"));
  all.add(number<&S::num_record_bytes>("lockstep_data_read_bytes_total"));
  all.add(number<&S::num_queued_batches>("lockstep_data_queue_batches"));
  all.add(number<&S::is_straggler>("lockstep_straggler_steps_total"));
  all.add(row("lockstep_last_step_timestamp_seconds", [](const S&) { return unix_time_s(); }));
  all.add(number<&S::nonfinite>("lockstep_nonfinite_steps_total"));
  all.add(number<&S::bytes_reduced>("lockstep_allreduce_bytes_total"));
  all.add(number<&S::bytes_saved>("lockstep_allreduce_saved_bytes_total"));
  all.add(number<&S::bytes_sent>("lockstep_allreduce_sent_bytes_total"));
  all.add(number<&S::allreduce_s>("lockstep_allreduce_seconds_total"));
  all.add(number<&S::allreduce_overlapped_s>("lockstep_allreduce_overlapped_seconds_total"));
  all.add(number<&S::allreduce_exposed_s>("lockstep_allreduce_exposed_seconds_total"));
  all.add(number<&S::bytes_gathered>("lockstep_gather_bytes_total"));
  all.add(number<&S::gather_s>("lockstep_gather_seconds_total"));
  all.add(number<&S::loss>("lockstep_train_loss"));
  all.add(number<&S::gradient_norm>("lockstep_gradient_norm"));
  all.add(number<&S::loss_scale>("lockstep_loss_scale"));
  return all;
}

}  // namespace

NamedTable<StepMetric>& step_metrics() {
  // A static, so that plug-ins can add rows before the run starts.
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
      // A counter exists from the start with 0, a gauge from its first value on.
      counters.push_back({metric, counter(registry, name, help)});
    else
      gauges.push_back({metric, OptionalGauge(registry, name, help)});
  }

  // deque: the counters' references and the gauges must not move.
  std::deque<OneCounter> counters;
  std::deque<OneGauge> gauges;
};

StepSeries::StepSeries(prometheus::Registry& registry, bool is_root,
                       const NamedTable<StepMetric>& table)
    : series_(std::make_unique<Series>()) {
  for (const StepMetric* metric : table.rows()) {
    if (metric->scope == StepMetric::kRun && !is_root) continue;
    // The registry does not know the names of histograms (NativeHistogram).
    for (const auto rows : {rank_series(), run_series()})
      for (const SeriesInfo& info : rows)
        if (info.kind == SeriesInfo::kHistogram && metric->name == info.name)
          throw Error(ExitCode::kConfig, "metrics", metric->name + ": the name is in use");
    try {
      series_->add(registry, *metric);
    } catch (const std::exception& error) {  // the Prometheus library throws its own types
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
