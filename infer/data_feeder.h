#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "coord/data_map.h"
#include "data/dataset.h"

/// Sources of an inferer's data.
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

/// Samples of a data set in order, once: `inputs` and `targets`, as in an evaluation. The last
/// batch may be smaller, also one with damaged samples. A batch of damaged samples only is left
/// out.
class DatasetFeeder final : public DataFeeder {
 public:
  /// batch_size: samples per iteration, at least 1.
  DatasetFeeder(std::unique_ptr<data::Dataset> dataset, int64_t batch_size);

  std::optional<coord::DataMap> next() override;
  std::optional<int64_t> num_iterations() const override;

 private:
  const std::unique_ptr<data::Dataset> dataset_;
  const int64_t batch_size_;
  int64_t num_read_ = 0;  // samples
};

/// Joins the feeds of one iteration (coord::joined_maps()). Requires at least one; a single one is
/// returned unchanged.
coord::DataMap joined(const std::vector<coord::DataMap>& parts);

}  // namespace lockstep::infer
