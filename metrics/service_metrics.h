#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Pages of an inference and of a server of jobs.
namespace lockstep::metrics {

/// Functions that the server's thread calls at each scrape.
struct InferenceCounts {
  std::function<int64_t()> feeds_waiting;    ///< read, not yet taken by the network
  std::function<int64_t()> answers_waiting;  ///< computed, not yet taken by the callbacks
  std::function<int64_t()> num_iterations;   ///< iterations whose callbacks have run
  std::function<std::map<std::string, double>()> kpis = {};  ///< last values of KPIs, by name
};

/// Page of an inference (docs/inference.md).
class InferenceMetrics {
 public:
  explicit InferenceMetrics(InferenceCounts counts);

  std::string page() const;

 private:
  const InferenceCounts counts_;
};

/// Numbers of a server of jobs.
struct ServerSample {
  int num_ranks = 0;
  /// Count by state: queued, running, done, ...
  std::vector<std::pair<std::string_view, int64_t>> num_jobs;
  int64_t num_starts = 0;  ///< job starts by this process
  bool is_held = false;    ///< jobs wait for a repair of the host
  struct {
    std::string job, run;  ///< number and run.name; empty: idle
  } running;
};

/// Returns the server's page in Prometheus' text format 0.0.4 (docs/running.md), with process_*.
std::string server_page(const ServerSample& sample);

}  // namespace lockstep::metrics
