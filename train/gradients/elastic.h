#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "data/sampler.h"

namespace lockstep::train {

/// Number of shards for `run.deterministic: elastic`. The global batch is always cut into this many
/// contiguous shards, each with a separate forward and backward pass. Their gradients are added
/// along one fixed binary tree. World sizes that divide this number give the same bits.
constexpr int kElasticShards = 8;

/// True if a world of this size can be elastic: 1, 2, 4 or 8 ranks.
bool is_elastic_world_size(int world_size);

/// Returns the shards of one rank, in order, as ranges of that rank's part of the global batch.
/// Shards of a small batch may be empty.
std::vector<data::Shard> elastic_shards(int64_t global_num_samples, int rank, int world_size);

/// Adds the gradients of one rank's shards along the part of the tree below this rank: ((0 + 1) +
/// (2 + 3)) + ((4 + 5) + (6 + 7)) for a single rank. The communicator continues the tree
/// (dist/reduce_in_rank_order.h) in the same shape. Keeps at most log2(num_shards) sums, each as
/// large as all gradients.
class ShardTree {
 public:
  /// num_shards: a power of two.
  explicit ShardTree(int num_shards) : num_shards_(num_shards) {}

  /// Adds the next shard, whose gradients are in the buffers. Unless it is the last, they are
  /// copied; zero the buffers then. After the last shard the buffers contain the sum of all.
  /// Returns numbers_V, added in the same way.
  at::Tensor add(std::vector<FlatBuffer>& buffers, at::Tensor numbers_V);

 private:
  /// Sum over 2^level shards.
  struct Node {
    int level = 0;
    std::vector<at::Tensor> grads;  // [E] by buffer; undefined where frozen
    at::Tensor numbers_V;
  };

  void keep(std::vector<FlatBuffer>& buffers, int level, at::Tensor numbers_V);

  int num_shards_;
  int num_added_ = 0;
  size_t num_kept_ = 0;
  std::vector<Node> kept_;  // the first num_kept_ contain sums, levels falling; the rest is unused
                            // memory
};

}  // namespace lockstep::train
