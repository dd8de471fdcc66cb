#include "metrics/live_page.h"

#include <algorithm>
#include <array>

#include <prometheus/metric_family.h>

#include "base/json.h"

// live_page.html, linked into the program by live_page_file.S.
extern "C" const char lockstep_live_page_begin[], lockstep_live_page_end[];

namespace lockstep::metrics {

void LiveHistory::add(const LivePoint& point) {
  const std::lock_guard lock(mutex_);
  newest_ = point;
  if (num_added_++ % stride_ != 0) return;
  kept_.push_back(point);
  if (kept_.size() <= max_points_) return;
  // Full: keep every second point, and from now on only every stride-th step.
  stride_ *= 2;
  for (size_t i = 0; 2 * i < kept_.size(); ++i) kept_[i] = kept_[2 * i];
  kept_.resize((kept_.size() + 1) / 2);
}

std::vector<LivePoint> LiveHistory::points() const {
  const std::lock_guard lock(mutex_);
  std::vector<LivePoint> all = kept_;
  // The newest step may be between two kept ones.
  if (!all.empty() && all.back().step != newest_.step) all.push_back(newest_);
  return all;
}

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 22> kShown = {
    "lockstep_run_state",
    "lockstep_step",
    "lockstep_epoch",
    "lockstep_epochs_planned",
    "lockstep_train_loss",
    "lockstep_validation_loss",
    "lockstep_validation_accuracy_ratio",
    "lockstep_learning_rate",
    "lockstep_sparsity_ratio",
    "lockstep_parameters",
    "lockstep_pruned_parameters",
    "lockstep_checkpoint_last_step",
    "lockstep_checkpoint_last_success_timestamp_seconds",
    "lockstep_steps_total",
    "lockstep_samples_total",
    "lockstep_step_duration_seconds",
    "lockstep_step_phase_seconds_total",
    "lockstep_allreduce_exposed_seconds_total",
    "lockstep_allreduce_bytes_total",
    "lockstep_allreduce_saved_bytes_total",
    "lockstep_nonfinite_steps_total",
    "process_resident_memory_bytes",
};

/// Returns a series' key: "lockstep_run_state{training}".
std::string key_of(const std::string& name, const prometheus::ClientMetric& metric) {
  std::string values;
  for (const auto& label : metric.label) values += (values.empty() ? "" : ",") + label.value;
  return values.empty() ? name : name + "{" + values + "}";
}

/// Adds a family's series; a histogram becomes its sum and its count.
void add_series(const prometheus::MetricFamily& family, Json* series) {
  for (const prometheus::ClientMetric& metric : family.metric) {
    const std::string key = key_of(family.name, metric);
    switch (family.type) {
      case prometheus::MetricType::Counter:
        (*series)[key] = metric.counter.value;
        break;
      case prometheus::MetricType::Histogram:
        (*series)[key + "_sum"] = metric.histogram.sample_sum;
        (*series)[key + "_count"] = metric.histogram.sample_count;
        break;
      default:
        (*series)[key] = metric.gauge.value;
    }
  }
}

/// Returns a list per number, as the page draws lists.
Json json_of(const std::vector<LivePoint>& history) {
  Json lists = {{"step", Json::array()},     {"time_s", Json::array()},
                {"loss", Json::array()},     {"learning_rate", Json::array()},
                {"sparsity", Json::array()}, {"num_samples", Json::array()}};
  const auto add = [&](const char* name, const std::optional<double>& value) {
    lists[name].push_back(value ? Json(*value) : Json());
  };
  for (const LivePoint& point : history) {
    lists["step"].push_back(point.step);
    lists["num_samples"].push_back(point.num_samples);
    add("time_s", point.time_s);
    add("loss", point.loss);
    add("learning_rate", point.learning_rate);
    add("sparsity", point.sparsity);
  }
  return lists;
}

}  // namespace

std::string_view live_page() {
  return {lockstep_live_page_begin,
          static_cast<size_t>(lockstep_live_page_end - lockstep_live_page_begin)};
}

std::string live_json(const LiveFacts& facts, const std::vector<prometheus::MetricFamily>& families,
                      const std::vector<LivePoint>& history, const std::vector<LiveRank>& ranks,
                      double time_s) {
  Json series = Json::object(), others = Json::array();
  // The page needs few series; live.json stays small.
  for (const prometheus::MetricFamily& family : families)
    if (std::find(kShown.begin(), kShown.end(), family.name) != kShown.end())
      add_series(family, &series);
  for (const LiveRank& rank : ranks)
    others.push_back({{"rank", rank.rank},
                      {"node", rank.node},
                      {"address", rank.address},
                      {"query", rank.query}});
  const Json all = {
      {"run", facts.run_name}, {"model", facts.model}, {"version", facts.version},
      {"rank", facts.rank},    {"node", facts.node},   {"world_size", facts.world_size},
      {"time_s", time_s},      {"series", series},     {"history", json_of(history)},
      {"ranks", others}};
  return json_text(all) + "\n";
}

}  // namespace lockstep::metrics
