#pragma once

#include <cstdint>
#include <vector>

#include "base/tensors/state_list.h"

namespace lockstep::data {

struct SamplerOptions {
  int64_t num_samples = 0;
  int64_t global_batch_size = 1;  ///< samples of one update over all ranks
  int64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;  ///< leave out the partial batch at an epoch's end
};

/// Position of a sampler: epoch and the number of its samples already taken.
struct SamplerPosition {
  int64_t epoch = 0;
  int64_t num_taken = 0;
  bool operator==(const SamplerPosition& other) const = default;
};

/// One global batch: the samples on which all ranks together train in one update.
struct GlobalBatch {
  int64_t epoch = 0;
  std::vector<int64_t> indices;  ///< global_batch_size of them, fewer in an epoch's last batch
};

/// Contiguous share of `count` items for part p of num_parts. Sizes differ by at most one.
struct Shard {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
Shard shard_of(int64_t count, int64_t part, int64_t num_parts);

/// Order of the samples. It depends only on (seed, epoch, global position), not on the world size
/// or on earlier training. Each sample occurs once per epoch.
///
/// The position (epoch, samples taken in it) is the entire state, which state() lists.
class Sampler {
 public:
  /// All counts must be > 0; with drop_last also num_samples >= global_batch_size.
  explicit Sampler(const SamplerOptions& options);

  /// Returns the next global batch and advances the position.
  GlobalBatch next();

  SamplerPosition position() const { return {epoch_, position_}; }
  /// Continues at a position that this sampler or a copy of it had before.
  void set_position(const SamplerPosition& position) {
    epoch_ = position.epoch;
    position_ = position.num_taken;
  }

  /// Returns ceil(samples / global batch), or floor with drop_last.
  int64_t steps_per_epoch() const;

  /// Returns epoch and position as `_lockstep/sampler/...`. After a restore has written them,
  /// next() continues there.
  StateList state();

 private:
  int64_t end_of_epoch() const;
  const std::vector<int64_t>& order_of(int64_t epoch);

  SamplerOptions options_;
  int64_t epoch_ = 0;
  int64_t position_ = 0;  // samples of the epoch already taken
  int64_t order_epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace lockstep::data
