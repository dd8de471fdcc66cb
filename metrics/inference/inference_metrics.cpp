#include "metrics/inference/inference_metrics.h"

#include "metrics/process_metrics.h"
#include "metrics/series.h"
#include "metrics/table/page_text.h"

// The registry is created for each page, since all values come from functions.
namespace lockstep::metrics {

InferenceMetrics::InferenceMetrics(InferenceCounts counts) : counts_(std::move(counts)) {}

std::string InferenceMetrics::page() const {
  prometheus::Registry registry;
  auto& depth = gauge_family(registry, "lockstep_infer_queue_depth",
                             "Iterations that wait in a queue between two stages.");
  depth.Add({{"queue", "feeds"}}).Set(static_cast<double>(counts_.feeds_waiting()));
  depth.Add({{"queue", "answers"}}).Set(static_cast<double>(counts_.answers_waiting()));
  counter(registry, "lockstep_infer_iterations_total", "Iterations whose callbacks have run.")
      .Increment(static_cast<double>(counts_.num_iterations()));
  if (counts_.kpis) {
    auto& kpi = gauge_family(registry, "lockstep_kpi", "What a KPI of callbacks gave last.");
    for (const auto& [name, value] : counts_.kpis())
      kpi.Add({{"kpi", name}, {"mode", "infer"}}).Set(value);
  }
  auto families = registry.Collect();
  // The common series of any process, as on a run's page.
  for (auto& family : ProcessMetrics().Collect()) families.push_back(std::move(family));
  return page_text(families);
}

}  // namespace lockstep::metrics
