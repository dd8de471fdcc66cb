#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "coord/data_map.h"

namespace lockstep::coord {

/// Services of a driver for callbacks that need more than their data. Functions over ranks are
/// collective: each rank calls them at the same places. Empty functions mean a single rank, and no
/// output for KPIs.
struct Services {
  /// Sums each number over the ranks, with the result on all of them.
  std::function<void(std::span<double>)> sum_over_ranks;
  /// Returns the maps of all ranks in rank order, on all of them.
  std::function<std::vector<DataMap>(const DataMap&)> gather_over_ranks;
  /// Sets a KPI's newest value, for a gauge and the export's kpi.json. Called on every rank.
  std::function<void(const std::string& name, double value)> set_kpi;
  /// Names of the driver's own figures next to the KPIs (num_samples, ...); no KPI may have one.
  std::vector<std::string> own_figures = {};
  std::vector<std::string> class_names = {};  ///< by class number; empty: unknown
  int64_t num_classes = 0;  ///< of `targets`; 0: unknown, or these are not class numbers
};

}  // namespace lockstep::coord
