#pragma once

#include <memory>

#include "data/datasets/dataset.h"
#include "infer/feed/data_feeder.h"

namespace lockstep::infer {

/// The samples of a data set in their order, once: `inputs` and `targets`, as an evaluation reads
/// them. The last batch may be smaller, and so is one of which samples are damaged; one of damaged
/// samples alone is left out.
class DatasetFeeder final : public DataFeeder {
 public:
  /// `batch_size` >= 1: samples of one iteration.
  DatasetFeeder(std::unique_ptr<data::Dataset> dataset, int64_t batch_size);

  std::optional<coord::DataMap> next() override;
  std::optional<int64_t> num_iterations() const override;

 private:
  const std::unique_ptr<data::Dataset> dataset_;
  const int64_t batch_size_;
  int64_t num_read_ = 0;  // samples
};

}  // namespace lockstep::infer
