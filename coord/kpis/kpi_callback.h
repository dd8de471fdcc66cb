#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coord/callback.h"
#include "coord/kpis/kpi_evaluator.h"
#include "coord/services.h"

namespace lockstep::coord {

/// Callback for a KpiEvaluator. Each iteration adds to the sums. At the end of each training epoch,
/// and in end(), the sums are added over the ranks. The values appear as TensorBoard's `kpi/<name>`
/// at the step of the last iteration, by Services::set_kpi, and in values(). Then the sums restart.
/// A pass that was broken off shows no values. Ranks may have different numbers of iterations. In
/// training a warning is logged once, because each iteration takes longer.
class KpiEvaluatorCallback : public Callback {
 public:
  explicit KpiEvaluatorCallback(std::unique_ptr<KpiEvaluator> evaluator, Services services = {});

  std::vector<std::string> incoming_keys() const override { return evaluator_->incoming_keys(); }
  RunOn run_on() const override { return RunOn::kAll; }
  void begin() override;
  std::optional<DataMap> on_iteration_end(const DataMap& data) override;
  void on_epoch_end() override { show(); }
  void end() override;
  std::vector<std::string> kpi_names() const override;

  /// Returns the values of the last pass by name; the same on all ranks.
  const std::map<std::string, double>& values() const { return values_; }

 private:
  void show();

  const std::unique_ptr<KpiEvaluator> evaluator_;
  const Services services_;
  std::vector<double> sums_;  // the evaluator's, then the number of iterations
  int64_t summary_step_ = 0;  // of the last iteration
  std::map<std::string, double> values_;
};

}  // namespace lockstep::coord
