#include "infer/feed/data_feeder.h"

#include <algorithm>

#include "infer/feed/join.h"

namespace lockstep::infer {

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

}  // namespace lockstep::infer
