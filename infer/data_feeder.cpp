#include "infer/data_feeder.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

// Feeders of an inferer, and the joining of their maps.
namespace lockstep::infer {

coord::DataMap joined(const std::vector<coord::DataMap>& parts) {
  check(!parts.empty(), "there is something to join");
  // The usual case: no copy of the tensors.
  if (parts.size() == 1) return parts.front();
  std::vector<const coord::DataMap*> all;
  for (const coord::DataMap& part : parts) all.push_back(&part);
  return coord::joined_maps(all, {.area = "infer", .parts_are = "the feeds of one iteration"});
}

std::optional<std::vector<coord::DataMap>> DataFeeder::next_list() {
  std::optional<coord::DataMap> feed = next();
  if (!feed) return std::nullopt;
  std::vector<coord::DataMap> list;
  list.push_back(std::move(*feed));
  return list;
}

ListFeeder::ListFeeder(std::vector<std::unique_ptr<DataFeeder>> feeders)
    : feeders_(std::move(feeders)), num_iterations_(0) {
  for (const auto& feeder : feeders_) {
    // The longest feeder decides; one of unknown length makes the total unknown.
    const std::optional<int64_t> count = feeder->num_iterations();
    num_iterations_ =
        count && num_iterations_ ? std::optional(std::max(*num_iterations_, *count)) : std::nullopt;
  }
}

std::optional<coord::DataMap> ListFeeder::next() {
  const auto list = next_list();
  if (!list) return std::nullopt;
  return joined(*list);
}

std::optional<std::vector<coord::DataMap>> ListFeeder::next_list() {
  std::vector<coord::DataMap> list;
  for (auto& feeder : feeders_) {
    if (!feeder) continue;
    std::optional<coord::DataMap> feed = feeder->next();
    if (feed)
      list.push_back(std::move(*feed));
    else
      feeder.reset();
  }
  if (list.empty()) return std::nullopt;
  return list;
}

std::optional<int64_t> ListFeeder::num_iterations() const { return num_iterations_; }

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
    if (!samples.names.empty() || !samples.more.empty())
      throw Error(ExitCode::kConfig, "infer",
                  "inference takes one tensor for each sample, this data set gives several: load "
                  "the weights in Python with lockstep.load_state_dict() and call the network");
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
