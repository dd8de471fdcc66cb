#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace lockstep::metrics {

/// Asked at each scrape, by the server's thread.
struct InferenceCounts {
  std::function<int64_t()> feeds_waiting;    ///< read, and not yet taken by the network
  std::function<int64_t()> answers_waiting;  ///< answered, and not yet taken by the callbacks
  std::function<int64_t()> num_iterations;   ///< whose callbacks have run
  std::function<std::map<std::string, double>()> kpis = {};  ///< what KPIs gave last, by name
};

/// The page of an inference (docs/inference.md).
class InferenceMetrics {
 public:
  explicit InferenceMetrics(InferenceCounts counts);

  std::string page() const;

 private:
  const InferenceCounts counts_;
};

}  // namespace lockstep::metrics
