#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coord/data_map.h"

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

}  // namespace lockstep::coord
