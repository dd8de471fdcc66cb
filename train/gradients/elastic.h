#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "data/sampler.h"

namespace lockstep::train {

/// `run.deterministic: elastic`: the global batch is always cut into this many contiguous shards,
/// each with a forward and backward pass of its own, whose gradients are added along one fixed
/// binary tree. World sizes that divide it give the same bits.
constexpr int kElasticShards = 8;

/// Whether a world of this size can be elastic: 1, 2, 4 or 8 ranks.
bool is_elastic_world_size(int world_size);

/// The shards of one rank as places in that rank's share of the global batch, in order. Shards of a
/// small batch may be empty.
std::vector<data::Shard> elastic_shards(int64_t global_num_samples, int rank, int world_size);

/// Adds up what the shards of one rank gave, along the part of the tree below this rank:
/// ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)) on one rank alone. The tree above is the
/// communicator's (dist/reduce_in_rank_order.h), of the same shape. Keeps log2(num_shards) sums at
/// most, each as large as all gradients.
class ShardTree {
 public:
  /// num_shards: a power of two.
  explicit ShardTree(int num_shards) : num_shards_(num_shards) {}

  /// The buffers hold the gradients of the next shard. Unless it is the last, they are taken; zero
  /// them then. After the last they hold the sum of all. Returns numbers_V, added up like them.
  at::Tensor add(std::vector<FlatBuffer>& buffers, at::Tensor numbers_V);

 private:
  /// The sum over 2^level shards.
  struct Node {
    int level = 0;
    std::vector<at::Tensor> grads;  // [E] by buffer; undefined where frozen
    at::Tensor numbers_V;
  };

  void keep(std::vector<FlatBuffer>& buffers, int level, at::Tensor numbers_V);

  int num_shards_;
  int num_added_ = 0;
  size_t num_kept_ = 0;
  std::vector<Node> kept_;  // the first num_kept_ hold sums, levels falling; the rest is room
};

}  // namespace lockstep::train
