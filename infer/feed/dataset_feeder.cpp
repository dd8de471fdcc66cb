#include "infer/feed/dataset_feeder.h"

#include <algorithm>
#include <numeric>

namespace lockstep::infer {

DatasetFeeder::DatasetFeeder(std::unique_ptr<data::Dataset> dataset, int64_t batch_size)
    : dataset_(std::move(dataset)), batch_size_(batch_size) {}

std::optional<coord::DataMap> DatasetFeeder::next() {
  while (num_read_ < dataset_->num_samples()) {
    std::vector<int64_t> indices_B(
        static_cast<size_t>(std::min(batch_size_, dataset_->num_samples() - num_read_)));
    std::iota(indices_B.begin(), indices_B.end(), num_read_);
    num_read_ += static_cast<int64_t>(indices_B.size());
    const data::Samples samples = dataset_->get(indices_B, /*epoch=*/0);
    if (samples.inputs_BX.size(0) == 0) continue;
    coord::DataMap feed;
    feed.put("inputs", samples.inputs_BX);
    if (samples.targets_BY.defined()) feed.put("targets", samples.targets_BY);
    return feed;
  }
  return std::nullopt;
}

std::optional<int64_t> DatasetFeeder::num_iterations() const {
  // An upper limit: batches of damaged samples are left out.
  return (dataset_->num_samples() + batch_size_ - 1) / batch_size_;
}

}  // namespace lockstep::infer
