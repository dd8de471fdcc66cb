#include "data/loader.h"

namespace lockstep::data {

Batch Loader::next() {
  const GlobalBatch global = sampler_.next();
  const auto num_samples = static_cast<int64_t>(global.indices.size());
  const Shard mine = shard_of(num_samples, rank_, world_size_);
  const std::span<const int64_t> indices =
      std::span(global.indices).subspan(mine.begin, mine.size());
  return {dataset_.get(indices), num_samples};
}

}  // namespace lockstep::data
