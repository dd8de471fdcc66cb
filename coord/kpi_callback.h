#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coord/callback.h"
#include "coord/data_map.h"

/// KPIs of a training or evaluation: their base class, and the callback that computes them.
namespace lockstep::coord {

struct Kpi {
  std::string name;  ///< "share_right"; part of the tag kpi/share_right; unique
  double value = 0;
};

/// Evaluator of KPIs from sums and counts. So the values do not depend on how samples are divided
/// into batches and over ranks.
///
///   class Accuracy : public KpiEvaluator {
///     std::vector<std::string> incoming_keys() const override { return {"logits", "labels"}; }
///     int64_t num_sums() const override { return 2; }
///     void add(const DataMap& data, std::span<double> sums) override { sums[0] += ...; }
///     std::vector<Kpi> values(std::span<const double> sums) const override {
///       return {{"share_right", sums[0] / sums[1]}};
///     }
///   };
class KpiEvaluator {
 public:
  virtual ~KpiEvaluator() = default;
  /// Returns the keys that add() reads, as those of a callback.
  virtual std::vector<std::string> incoming_keys() const = 0;
  virtual int64_t num_sums() const = 0;
  /// Adds an iteration's values to `sums`, an array of num_sums() numbers.
  virtual void add(const DataMap& data, std::span<double> sums) = 0;
  /// Returns the KPIs from the sums over all iterations of a pass and all ranks. Also called before
  /// the run, with sums of 1, to get the names.
  virtual std::vector<Kpi> values(std::span<const double> sums) const = 0;
};

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
