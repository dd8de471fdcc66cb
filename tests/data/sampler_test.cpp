#include "data/sampler.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "data/dataset_table.h"
#include "data/loader.h"

namespace lockstep::data {
namespace sampler_test {

std::vector<int64_t> epoch_order(Sampler& sampler) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < sampler.steps_per_epoch(); ++i) {
    const GlobalBatch batch = sampler.next();
    order.insert(order.end(), batch.indices.begin(), batch.indices.end());
  }
  return order;
}

TEST(Sampler, EachSampleOnceAnEpochInANewOrder) {
  Sampler sampler({.num_samples = 103, .global_batch_size = 10, .seed = 5});
  std::vector<int64_t> first = epoch_order(sampler), second = epoch_order(sampler);
  EXPECT_NE(first, second);
  for (auto* order : {&first, &second}) {
    std::sort(order->begin(), order->end());
    for (int64_t i = 0; i < 103; ++i) EXPECT_EQ((*order)[static_cast<size_t>(i)], i);
  }
}

TEST(Sampler, CountsSteps) {
  EXPECT_EQ(Sampler({.num_samples = 55000, .global_batch_size = 1024}).steps_per_epoch(), 54);
  EXPECT_EQ(Sampler({.num_samples = 55000, .global_batch_size = 1024, .drop_last = true})
                .steps_per_epoch(),
            53);
  EXPECT_EQ(Sampler({.num_samples = 60000, .global_batch_size = 1024}).steps_per_epoch(), 59);
  EXPECT_EQ(Sampler({.num_samples = 1, .global_batch_size = 1024}).steps_per_epoch(), 1);
  EXPECT_THROW(Sampler({.num_samples = 5, .global_batch_size = 8, .drop_last = true}), Error);
}

TEST(Sampler, OrderDependsOnSeedAndEpochOnly) {
  Sampler small({.num_samples = 50, .global_batch_size = 7, .seed = 5}),
      large({.num_samples = 50, .global_batch_size = 50, .seed = 5});
  Sampler other({.num_samples = 50, .global_batch_size = 7, .seed = 6});
  const std::vector<int64_t> order = epoch_order(small);
  EXPECT_EQ(order, epoch_order(large));
  EXPECT_NE(order, epoch_order(other));
}

TEST(Sampler, GoesOnFromARestoredState) {
  const SamplerOptions options{.num_samples = 23, .global_batch_size = 5, .seed = 1};
  Sampler unbroken(options), stopped(options), resumed(options);
  for (int i = 0; i < 7; ++i) {
    (void)unbroken.next();
    (void)stopped.next();
  }
  StateList from = stopped.state(), to = resumed.state();
  for (size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(resumed.next().indices, unbroken.next().indices);
}

TEST(Sampler, SharesCoverABatchExactly) {
  for (int64_t count : {0, 1, 2, 5, 64, 65})
    for (int64_t parts : {1, 2, 3, 4, 8}) {
      int64_t end = 0;
      for (int64_t p = 0; p < parts; ++p) {
        const Shard share = shard_of(count, p, parts);
        EXPECT_EQ(share.begin, end);
        EXPECT_LE(std::abs(share.size() * parts - count), parts);
        end = share.end;
      }
      EXPECT_EQ(end, count);
    }
}

TEST(Loader, RanksTogetherLoadTheGlobalBatch) {
  const RandomDataset dataset({3}, 4, 10, 1);
  Sampler whole({.num_samples = 10, .global_batch_size = 4, .seed = 2});
  Loader one(dataset, whole, 0, 1);
  std::vector<Sampler> samplers(3, Sampler({.num_samples = 10, .global_batch_size = 4, .seed = 2}));
  for (int step = 0; step < 6; ++step) {
    const Batch expected = one.next();
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < 3; ++rank) {
      const Batch batch = Loader(dataset, samplers[static_cast<size_t>(rank)], rank, 3).next();
      EXPECT_EQ(batch.global_num_samples, expected.global_num_samples);
      parts.push_back(batch.samples.inputs_BX);
    }
    EXPECT_TRUE(at::equal(at::cat(parts), expected.samples.inputs_BX));
  }
}

}  // namespace sampler_test
}  // namespace lockstep::data
