#pragma once

#include <memory>

#include "data/datasets/dataset.h"
#include "infer/feed/data_feeder.h"

namespace lockstep::infer {

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

}  // namespace lockstep::infer
