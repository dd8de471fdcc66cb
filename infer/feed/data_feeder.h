#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "coord/data_map.h"

namespace lockstep::infer {

/// Gives an inferer what its network is asked, one map of named values an iteration: the network's
/// inputs, by their names, and whatever else the callbacks shall see. Dimension 0 of each tensor
/// are the samples.
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
/// Threads: one at a time, not always the same. What it throws ends the inference.
class DataFeeder {
 public:
  DataFeeder() = default;
  virtual ~DataFeeder() = default;
  DataFeeder(const DataFeeder&) = delete;
  DataFeeder& operator=(const DataFeeder&) = delete;

  /// Nothing: that was all. It is not called again then.
  virtual std::optional<coord::DataMap> next() = 0;

  /// A list of maps is one iteration too: the network answers each by itself, and the callbacks
  /// see all of them joined on dimension 0, once. The default gives next() alone. Nothing: that
  /// was all.
  virtual std::optional<std::vector<coord::DataMap>> next_list();

  /// How often next_list() gives something; nothing where that is not known before.
  virtual std::optional<int64_t> num_iterations() const { return std::nullopt; }
};

/// Several feeders side by side: each iteration is the list of what each of them gives next. One
/// that has ended is left out; the others go on.
class ListFeeder final : public DataFeeder {
 public:
  explicit ListFeeder(std::vector<std::unique_ptr<DataFeeder>> feeders);

  /// The next list, joined.
  std::optional<coord::DataMap> next() override;
  std::optional<std::vector<coord::DataMap>> next_list() override;
  std::optional<int64_t> num_iterations() const override;

 private:
  std::vector<std::unique_ptr<DataFeeder>> feeders_;  ///< null: has ended
  std::optional<int64_t> num_iterations_;
};

}  // namespace lockstep::infer
