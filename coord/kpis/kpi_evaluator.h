#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coord/data_map.h"

namespace lockstep::coord {

struct Kpi {
  std::string name;  ///< "share_right"; part of the tag kpi/share_right; no two have the same
  double value = 0;
};

/// Numbers that judge a network, as sums and counts, so that they are the same however samples are
/// divided into batches and over ranks.
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
  /// As a callback's.
  virtual std::vector<std::string> incoming_keys() const = 0;
  virtual int64_t num_sums() const = 0;
  /// Adds an iteration's to `sums`, of which there are num_sums().
  virtual void add(const DataMap& data, std::span<double> sums) = 0;
  /// Of the sums over all iterations of a pass and all ranks. Also called before the run, with sums
  /// of 1, for the names alone.
  virtual std::vector<Kpi> values(std::span<const double> sums) const = 0;
};

}  // namespace lockstep::coord
