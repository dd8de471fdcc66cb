// Statistics of two sets are joined with the formulas of Chan, Golub and LeVeque. A new sample is a
// set of one.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "coord/buffers/buffer.h"
#include "coord/savers/split_batch.h"

namespace lockstep::coord {

void StatsBuffer::join(const std::string& key, const Stats& other, Stats* stats) {
  if (stats->count == 0) {
    *stats = other;
    return;
  }
  if (stats->mean.sizes() != other.mean.sizes())
    throw Error(
        ExitCode::kBadData, "callbacks",
        fmt::format("key '{}' has the shape [{}] in one sample and [{}] in another, so there "
                    "are no statistics of it",
                    key, fmt::join(stats->mean.sizes(), ", "),
                    fmt::join(other.mean.sizes(), ", ")));
  // The formulas of Chan et al. for sets of `own` and `more` elements.
  const auto own = static_cast<double>(stats->count), more = static_cast<double>(other.count);
  const at::Tensor delta = other.mean - stats->mean;
  stats->deviations =
      stats->deviations + other.deviations + delta * delta * (own * more / (own + more));
  stats->mean = stats->mean + delta * (more / (own + more));
  stats->minimum = at::minimum(stats->minimum, other.minimum);
  stats->maximum = at::maximum(stats->maximum, other.maximum);
  stats->count += other.count;
}

void StatsBuffer::add(const DataMap& sample) {
  ++num_samples_;
  for (const FlatValue& flat : flat_values(sample)) {
    const at::Tensor* const tensor = std::get_if<at::Tensor>(flat.value);
    // Texts have no statistics.
    if (tensor == nullptr) continue;
    const at::Tensor value = on_cpu(*tensor).to(at::kDouble);
    const std::string key = path_text(flat);
    join(key, {1, value, at::zeros_like(value), value, value}, &stats_[key]);
  }
}

// Tensors only, so that services can gather the state over the ranks.
DataMap StatsBuffer::state() const {
  DataMap state;
  for (const auto& [key, stats] : stats_) {
    auto map = std::make_shared<DataMap>();
    map->put("count", at::full({}, stats.count, at::kLong));
    map->put("mean", stats.mean);
    map->put("deviations", stats.deviations);
    map->put("minimum", stats.minimum);
    map->put("maximum", stats.maximum);
    state.put(key, std::move(map));
  }
  return state;
}

DataMap StatsBuffer::joined(std::span<const DataMap> states) const {
  AllStats all;
  for (const DataMap& state : states)
    for (const auto& [key, value] : state.values()) {
      const DataMap& map = state.map(key);
      join(key,
           {map.tensor("count").item<int64_t>(), map.tensor("mean"), map.tensor("deviations"),
            map.tensor("minimum"), map.tensor("maximum")},
           &all[key]);
    }
  DataMap joined;
  for (const auto& [key, stats] : all) {
    auto map = std::make_shared<DataMap>();
    map->put("count", at::full({}, stats.count, at::kLong));
    map->put("mean", stats.mean);
    // Variance of the set itself: divided by the count, not by count - 1.
    map->put("variance", stats.deviations / static_cast<double>(stats.count));
    map->put("minimum", stats.minimum);
    map->put("maximum", stats.maximum);
    joined.put(key, std::move(map));
  }
  return joined;
}

void StatsBuffer::clear() {
  stats_.clear();
  num_samples_ = 0;
}

}  // namespace lockstep::coord
