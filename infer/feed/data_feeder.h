#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "coord/data_map.h"

namespace lockstep::infer {

/// Source of an inferer's data: one map of named values per iteration. It contains the network's
/// inputs by name, and other values for the callbacks. Dimension 0 of each tensor is the samples.
///
///   class Sensor final : public DataFeeder {
///     std::optional<coord::DataMap> next() override {
///       if (num_left_-- == 0) return std::nullopt;
///       coord::DataMap feed;
///       feed.put("inputs", read_BX());
///       return feed;
///     }
///   };
///
/// Threads: one at a time, but not always the same. An exception ends the inference.
class DataFeeder {
 public:
  DataFeeder() = default;
  virtual ~DataFeeder() = default;
  DataFeeder(const DataFeeder&) = delete;
  DataFeeder& operator=(const DataFeeder&) = delete;

  /// Returns the next map; nullopt at the end, after which it is not called again.
  virtual std::optional<coord::DataMap> next() = 0;

  /// Returns the maps of the next iteration; nullopt at the end. The network answers each map
  /// separately. Callbacks see all of them once, joined on dimension 0. The default returns next()
  /// alone.
  virtual std::optional<std::vector<coord::DataMap>> next_list();

  /// Number of lists that next_list() will return; nullopt if unknown.
  virtual std::optional<int64_t> num_iterations() const { return std::nullopt; }
};

/// Several feeders in parallel: each iteration is the list of their next maps. A feeder that has
/// ended is left out; the others continue.
class ListFeeder final : public DataFeeder {
 public:
  explicit ListFeeder(std::vector<std::unique_ptr<DataFeeder>> feeders);

  /// Returns the next list, joined.
  std::optional<coord::DataMap> next() override;
  std::optional<std::vector<coord::DataMap>> next_list() override;
  std::optional<int64_t> num_iterations() const override;

 private:
  std::vector<std::unique_ptr<DataFeeder>> feeders_;  ///< null after its end
  std::optional<int64_t> num_iterations_;
};

}  // namespace lockstep::infer
