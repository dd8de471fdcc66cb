#include "metrics/service_metrics.h"

#include "metrics/page_formats.h"
#include "metrics/series.h"

// Pages of an inference and of a server of jobs. The registry of an inference is created for each
// page, since all values come from functions.
namespace lockstep::metrics {
namespace {

/// Returns the page of these series and the common ones of any process, as on a run's page.
std::string page_of(const prometheus::Registry& registry) {
  auto families = registry.Collect();
  for (auto& family : process_families()) families.push_back(std::move(family));
  return page_in(PageFormat::kText, {std::move(families)});
}

}  // namespace

InferenceMetrics::InferenceMetrics(InferenceCounts counts) : counts_(std::move(counts)) {}

std::string InferenceMetrics::page() const {
  prometheus::Registry registry;
  auto& depth = gauge_family(registry, "lockstep_infer_queue_depth",
                             "Iterations waiting in a queue between two stages.");
  depth.Add({{"queue", "feeds"}}).Set(static_cast<double>(counts_.feeds_waiting()));
  depth.Add({{"queue", "answers"}}).Set(static_cast<double>(counts_.answers_waiting()));
  counter(registry, "lockstep_infer_iterations_total", "Iterations whose callbacks have run.")
      .Increment(static_cast<double>(counts_.num_iterations()));
  if (counts_.kpis) {
    auto& kpi = gauge_family(registry, "lockstep_kpi", "Last value of a callback's KPI.");
    for (const auto& [name, value] : counts_.kpis())
      kpi.Add({{"kpi", name}, {"mode", "infer"}}).Set(value);
  }
  return page_of(registry);
}

// The registry of a server is created for each page: the server keeps the numbers itself.

std::string server_page(const ServerSample& sample) {
  prometheus::Registry registry;
  const bool is_idle = sample.running.job.empty();
  auto& state = gauge_family(registry, "lockstep_server_state", "1 for one of idle, running.");
  state.Add({{"state", "idle"}}).Set(is_idle ? 1 : 0);
  state.Add({{"state", "running"}}).Set(is_idle ? 0 : 1);
  auto& jobs =
      gauge_family(registry, "lockstep_server_jobs", "Jobs of the queue, ended ones included.");
  for (const auto& [name, number] : sample.num_jobs)
    jobs.Add({{"state", std::string(name)}}).Set(static_cast<double>(number));
  gauge_family(registry, "lockstep_server_ranks", "Ranks of the world.")
      .Add({})
      .Set(sample.num_ranks);
  gauge_family(registry, "lockstep_server_held",
               "1 while jobs wait until a fault of this host, such as a full disk, is fixed.")
      .Add({})
      .Set(sample.is_held ? 1 : 0);
  counter(registry, "lockstep_server_job_starts_total", "Jobs started by this process.")
      .Increment(static_cast<double>(sample.num_starts));
  // An info series exists only while a job runs.
  if (!is_idle)
    gauge_family(registry, "lockstep_server_job_info", "Number of the running job.")
        .Add({{"job", sample.running.job}, {"run", sample.running.run}})
        .Set(1);
  return page_of(registry);
}

}  // namespace lockstep::metrics
