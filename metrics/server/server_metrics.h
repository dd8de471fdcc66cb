#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::metrics {

/// What a server of jobs knows of itself.
struct ServerSample {
  int num_ranks = 0;
  /// By state: queued, running, done, ...
  std::vector<std::pair<std::string_view, int64_t>> num_jobs;
  int64_t num_starts = 0;  ///< of jobs, by this process
  bool is_held = false;    ///< jobs wait until the host is mended
  struct {
    std::string job, run;  ///< number and run.name; empty: it is idle
  } running;
};

/// Its page, in Prometheus' text format 0.0.4 (docs/running.md), with process_*.
std::string server_page(const ServerSample& sample);

}  // namespace lockstep::metrics
