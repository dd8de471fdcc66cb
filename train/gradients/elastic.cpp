// Fixed shards and a fixed tree of additions, whatever the number of ranks: the source of equal
// bits.
#include "train/gradients/elastic.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>

#include "base/error.h"

namespace lockstep::train {

bool is_elastic_world_size(int world_size) {
  return world_size >= 1 && world_size <= kElasticShards && kElasticShards % world_size == 0;
}

std::vector<data::Shard> elastic_shards(int64_t global_num_samples, int rank, int world_size) {
  check(is_elastic_world_size(world_size), "elastic worlds have 1, 2, 4 or 8 ranks");
  const int num_shards = kElasticShards / world_size;
  const data::Shard mine = data::shard_of(global_num_samples, rank, world_size);
  std::vector<data::Shard> shards;
  for (int i = 0; i < num_shards; ++i) {
    const data::Shard shard =
        data::shard_of(global_num_samples, rank * num_shards + i, kElasticShards);
    shards.push_back({shard.begin - mine.begin, shard.end - mine.begin});
  }
  return shards;
}

at::Tensor ShardTree::add(std::vector<FlatBuffer>& buffers, at::Tensor numbers_V) {
  int level = 0;
  // A binary counter: two sums of one level combine to one of the next, as in the fixed tree.
  for (; num_kept_ > 0 && kept_[num_kept_ - 1].level == level; ++level) {
    const Node& left = kept_[--num_kept_];
    for (size_t i = 0; i < buffers.size(); ++i)
      if (!buffers[i].frozen) buffers[i].grads_E.add_(left.grads[i]);
    numbers_V = left.numbers_V + numbers_V;
  }
  if (++num_added_ < num_shards_) {
    keep(buffers, level, numbers_V);
    return numbers_V;
  }
  check(num_kept_ == 0, "the number of shards is a power of two");
  num_added_ = 0;
  return numbers_V;
}

void ShardTree::keep(std::vector<FlatBuffer>& buffers, int level, at::Tensor numbers_V) {
  if (num_kept_ == kept_.size()) kept_.emplace_back();
  Node& node = kept_[num_kept_++];
  node.level = level;
  node.numbers_V = std::move(numbers_V);
  node.grads.resize(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].frozen) continue;
    const at::Tensor& grads_E = buffers[i].grads_E;
    at::Tensor& room = node.grads[i];
    // Memory is reused from step to step, unless the layout has changed.
    if (!room.defined() || room.sizes() != grads_E.sizes()) room = at::empty_like(grads_E);
    room.copy_(grads_E);
  }
}

}  // namespace lockstep::train
