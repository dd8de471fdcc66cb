#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "coord/data_map.h"

namespace lockstep::coord {

/// What a driver gives to callbacks that need more than their data. The functions of ranks are
/// collective: each rank calls them at the same places. Empty ones mean one rank, and no place to
/// show numbers.
struct Services {
  /// Adds each number over the ranks, on all of them.
  std::function<void(std::span<double>)> sum_over_ranks;
  /// The maps of all ranks in their order, on all of them.
  std::function<std::vector<DataMap>(const DataMap&)> gather_over_ranks;
  /// A KPI's newest value, for a gauge and the export's kpi.json; called on every rank.
  std::function<void(const std::string& name, double value)> set_kpi;
  /// Names that the driver's own figures have beside the KPIs (num_samples, ...): no KPI may have
  /// one.
  std::vector<std::string> own_figures = {};
  std::vector<std::string> class_names = {};  ///< by class number; empty: unknown
  int64_t num_classes = 0;  ///< of `targets`; 0: unknown, or these are not class numbers
};

}  // namespace lockstep::coord
