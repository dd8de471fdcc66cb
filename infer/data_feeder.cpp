#include "infer/data_feeder.h"

#include <algorithm>
#include <numeric>
#include <string>

#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

// Feeders of an inferer, and the joining of their maps.
namespace lockstep::infer {
// joined() first checks that all maps have the same keys, then joins value by value. Messages name
// the key, and the position of the first map that differs.
namespace {

using coord::DataMap;
using coord::DataValue;

constexpr const char* kKinds[] = {"a tensor", "texts", "a map"};

[[noreturn]] void refuse_join(const std::string& key, size_t part, const std::string& first,
                              const std::string& other) {
  throw Error(ExitCode::kBadData, "infer",
              fmt::format("'{}' of the feeds of one iteration cannot be joined: it is {} in the "
                          "first, {} in number {} of the list",
                          key, first, other, part + 1));
}

std::string described(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

/// Joins on dimension 0. All other dimensions and the type must be equal.
at::Tensor joined_tensors(const std::string& key, const std::vector<const DataValue*>& parts) {
  std::vector<at::Tensor> tensors;
  for (const DataValue* part : parts) tensors.push_back(std::get<at::Tensor>(*part));
  const at::Tensor& first = tensors.front();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& other = tensors[i];
    if (other.dim() == 0 || other.dim() != first.dim() ||
        other.sizes().slice(1) != first.sizes().slice(1) ||
        other.scalar_type() != first.scalar_type())
      refuse_join(key, i, described(first), described(other));
  }
  return at::cat(tensors);
}

std::vector<std::string> joined_texts(const std::vector<const DataValue*>& parts) {
  std::vector<std::string> all;
  for (const DataValue* part : parts)
    for (const std::string& text : std::get<std::vector<std::string>>(*part)) all.push_back(text);
  return all;
}

/// Joins values of one key; recursive for nested maps.
DataValue joined_values(const std::string& key, const std::vector<const DataValue*>& parts) {
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i]->index() != parts.front()->index())
      refuse_join(key, i, kKinds[parts.front()->index()], kKinds[parts[i]->index()]);
  if (std::holds_alternative<at::Tensor>(*parts.front())) return joined_tensors(key, parts);
  if (std::holds_alternative<std::vector<std::string>>(*parts.front())) return joined_texts(parts);
  std::vector<DataMap> maps;
  for (const DataValue* part : parts)
    maps.push_back(*std::get<std::shared_ptr<const DataMap>>(*part));
  return std::make_shared<const DataMap>(joined(maps));
}

}  // namespace

DataMap joined(const std::vector<DataMap>& parts) {
  check(!parts.empty(), "there is something to join");
  // The usual case: no copy of the tensors.
  if (parts.size() == 1) return parts.front();
  for (size_t i = 1; i < parts.size(); ++i)
    for (const auto& [key, value] : parts[i].values())
      if (!parts.front().contains(key)) refuse_join(key, i, "not there", "there");
  DataMap all;
  for (const auto& [key, value] : parts.front().values()) {
    std::vector<const DataValue*> values;
    for (size_t i = 0; i < parts.size(); ++i) {
      values.push_back(parts[i].find(key));
      if (values.back() == nullptr) refuse_join(key, i, "there", "not there");
    }
    all.put(key, joined_values(key, values));
  }
  return all;
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
