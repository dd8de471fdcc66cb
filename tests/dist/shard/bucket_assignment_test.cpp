#include "dist/reducer/buckets.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/dist/reducer/flat_model.h"

namespace lockstep::dist {
namespace bucket_assignment_test {

using ::testing::HasSubstr;

int64_t elements_of(const std::vector<ParamShard>& regions) {
  int64_t sum = 0;
  for (const ParamShard& region : regions) sum += region.end_E - region.begin_E;
  return sum;
}

int64_t elements_of(const std::vector<FlatBuffer>& buffers) {
  int64_t sum = 0;
  for (const FlatBuffer& buffer : buffers) sum += buffer.values_E.numel();
  return sum;
}

TEST(BucketAssignment, WholeBucketsAreEveryRanks) {
  tests::FlatModel model(4, 100);
  BucketAssignment assignment(model.params, {.bucket_bytes = 40'000}, 1, 2);
  EXPECT_TRUE(assignment.rebuild(model.buffers));
  EXPECT_FALSE(assignment.rebuild(model.buffers)) << "the same buffers";
  EXPECT_FALSE(assignment.is_sharded());
  EXPECT_GT(assignment.size(), 1u);
  EXPECT_EQ(elements_of(assignment.local_shards()), elements_of(model.buffers));
  EXPECT_EQ(assignment.local_shards().size(), model.buffers.size()) << "neighbours are one region";
}

TEST(BucketAssignment, RanksOwnEachElementOnce) {
  tests::FlatModel model(4, 100);
  std::vector<at::Tensor> num_owners;  // by buffer, [E]
  for (const FlatBuffer& buffer : model.buffers)
    num_owners.push_back(at::zeros_like(buffer.values_E));
  for (int rank = 0; rank < 3; ++rank) {
    BucketAssignment assignment(model.params, {.bucket_bytes = 40'000, .shard_optimizer = true},
                                rank, 3);
    assignment.rebuild(model.buffers);
    EXPECT_TRUE(assignment.is_sharded());
    for (size_t i = 0; i < assignment.size(); ++i)
      EXPECT_EQ(assignment.shards(i).num_elements(), assignment.grads_E(i).numel());
    for (const ParamShard& own : assignment.local_shards())
      num_owners[own.buffer].narrow(0, own.begin_E, own.end_E - own.begin_E).add_(1);
  }
  for (const at::Tensor& owners_E : num_owners) EXPECT_TRUE(owners_E.eq(1).all().item<bool>());
}

TEST(BucketAssignment, OneRankOwnsAll) {
  tests::FlatModel model(2, 10);
  BucketAssignment assignment(model.params, {.shard_optimizer = true}, 0, 1);
  assignment.rebuild(model.buffers);
  EXPECT_FALSE(assignment.is_sharded());
  EXPECT_EQ(elements_of(assignment.local_shards()), elements_of(model.buffers));
}

/// There are as few pieces as buffers, since nothing is sent.
TEST(BucketAssignment, SharedBuffersAreOneBucketEach) {
  tests::FlatModel model(4, 100);
  for (FlatBuffer& buffer : model.buffers)
    buffer.grads_by_rank = {buffer.grads_E, at::zeros_like(buffer.grads_E)};
  BucketAssignment assignment(model.params, {.bucket_bytes = 40'000}, 0, 2);
  assignment.rebuild(model.buffers);
  EXPECT_TRUE(assignment.is_shared());
  EXPECT_TRUE(assignment.is_sharded());
  EXPECT_EQ(assignment.size(), model.buffers.size());
}

TEST(BucketAssignment, ABucketIsNamedByItsFirstParameter) {
  tests::FlatModel model(4, 100);
  BucketAssignment assignment(model.params, {.bucket_bytes = 40'000}, 0, 2);
  assignment.rebuild(model.buffers);
  EXPECT_THAT(assignment.text_of(0), HasSubstr("bucket 1 of "));
  EXPECT_THAT(assignment.text_of(0), HasSubstr("layers.3.weight"));
}

}  // namespace bucket_assignment_test
}  // namespace lockstep::dist
