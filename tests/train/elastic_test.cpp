#include "train/step/step_modes.h"

#include <cmath>

#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include "dist/tensor_math.h"

namespace lockstep::train {
namespace elastic_test {

TEST(ElasticShards, MakeUpEachRanksShareAtEveryWorldSize) {
  for (const int64_t num_samples : {0, 1, 7, 8, 30, 64}) {
    std::vector<data::Shard> alone = elastic_shards(num_samples, 0, 1);
    ASSERT_EQ(alone.size(), 8U);
    for (const int world_size : {2, 4, 8}) {
      size_t next = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const int64_t begin = data::shard_of(num_samples, rank, world_size).begin;
        for (const data::Shard& shard : elastic_shards(num_samples, rank, world_size)) {
          EXPECT_EQ(begin + shard.begin, alone[next].begin);
          EXPECT_EQ(begin + shard.end, alone[next].end);
          ++next;
        }
      }
      EXPECT_EQ(next, 8U);
    }
  }
}

TEST(ElasticShards, OnlyWorldSizesThatDivideEight) {
  for (int world_size = 0; world_size <= 16; ++world_size)
    EXPECT_EQ(is_elastic_world_size(world_size),
              world_size == 1 || world_size == 2 || world_size == 4 || world_size == 8);
}

/// Sum over 8 ranks along the communicator's own tree.
at::Tensor sum_over_ranks(const std::vector<at::Tensor>& shards_E) {
  std::vector<const std::byte*> values;
  for (const at::Tensor& shard_E : shards_E)
    values.push_back(static_cast<const std::byte*>(shard_E.const_data_ptr()));
  at::Tensor sum_E = at::zeros_like(shards_E[0]);
  dist::reduce_in_rank_order(values, static_cast<std::byte*>(sum_E.mutable_data_ptr()),
                             sum_E.numel(), at::kFloat, dist::ReduceOp::kSum);
  return sum_E;
}

/// Adds shards [first, first + count) as one rank does.
at::Tensor sum_of_rank(const std::vector<at::Tensor>& shards_E, size_t first, size_t count,
                       ShardTree* tree, at::Tensor* sums_V) {
  std::vector<FlatBuffer> buffers(2);
  buffers[0].frozen = true;
  buffers[1].grads_E = at::zeros_like(shards_E[0]);
  for (size_t i = first; i < first + count; ++i) {
    buffers[1].grads_E.zero_();
    buffers[1].grads_E.add_(shards_E[i]);
    *sums_V = tree->add(buffers, at::full({2}, 0.1 * static_cast<double>(i), at::kDouble));
  }
  return buffers[1].grads_E;
}

TEST(ShardTree, AddsAlongTheCommunicatorsTree) {
  std::vector<at::Tensor> shards_E;
  for (int i = 0; i < 8; ++i) shards_E.push_back(at::randn({1001}) * std::pow(10.0, i - 4));
  const at::Tensor expected = sum_over_ranks(shards_E);

  ShardTree alone(8);
  at::Tensor sums_V;
  for (int step = 0; step < 2; ++step) {  // its room is used again
    EXPECT_TRUE(at::equal(sum_of_rank(shards_E, 0, 8, &alone, &sums_V), expected));
    EXPECT_EQ(sums_V[1].item<double>(),
              ((0.0 + 0.1) + (0.2 + 0.1 * 3)) + ((0.4 + 0.5) + (0.1 * 6 + 0.1 * 7)));
  }

  for (const size_t world_size : {2, 4, 8}) {
    std::vector<at::Tensor> by_rank;
    const size_t count = 8 / world_size;
    for (size_t rank = 0; rank < world_size; ++rank) {
      ShardTree tree(static_cast<int>(count));
      by_rank.push_back(sum_of_rank(shards_E, rank * count, count, &tree, &sums_V));
    }
    EXPECT_TRUE(at::equal(sum_over_ranks(by_rank), expected)) << world_size;
  }

  at::Tensor in_turn = shards_E[0].clone();  // another order has other bits, or nothing is shown
  for (size_t i = 1; i < 8; ++i) in_turn.add_(shards_E[i]);
  EXPECT_FALSE(at::equal(in_turn, expected));
}

}  // namespace elastic_test
}  // namespace lockstep::train
