#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

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

}  // namespace lockstep::metrics
