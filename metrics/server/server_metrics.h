#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::metrics {

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
