#include "data/loader.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/error.h"
#include "data/data_options.h"
#include "data/dataset.h"
#include "tests/support/patience.h"

namespace lockstep::data {
namespace loader_test {

/// Sample i of epoch e is 1000 e + i. Odd batches take longer, so that threads overtake.
class CountingDataset : public Dataset {
 public:
  int64_t num_samples() const override { return 10; }
  SampleSpec spec() const override {
    return {.input_shape = {}, .target_kind = TargetKind::kClass, .num_classes = 10};
  }
  Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override {
    const int number = num_reads_.fetch_add(1);
    if (number % 2 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    at::Tensor inputs_B = at::empty({static_cast<int64_t>(indices_B.size())}, at::kFloat);
    for (size_t i = 0; i < indices_B.size(); ++i) {
      if (indices_B[i] == bad_sample)
        throw Error(ExitCode::kBadData, "data", "sample 7 cannot be read");
      inputs_B[static_cast<int64_t>(i)] = static_cast<float>(1000 * epoch + indices_B[i]);
    }
    return {inputs_B, inputs_B.to(at::kLong)};
  }
  std::string digest() const override { return ""; }

  int64_t bad_sample = -1;
  int num_reads() const { return num_reads_.load(); }

 private:
  mutable std::atomic<int> num_reads_{0};
};

constexpr SamplerOptions kSampler{
    .num_samples = 10, .global_batch_size = 4, .seed = 3, .shuffle = true, .drop_last = false};

std::vector<float> values_of(const Batch& batch) {
  const at::Tensor& inputs_B = batch.samples.inputs_BX;
  return {inputs_B.const_data_ptr<float>(), inputs_B.const_data_ptr<float>() + inputs_B.numel()};
}

std::vector<std::vector<float>> batches_of(int64_t num_threads, int num_batches) {
  const CountingDataset dataset;
  Sampler sampler(kSampler);
  Loader loader(dataset, sampler, /*rank=*/1, /*world_size=*/2,
                {.num_threads = num_threads, .prefetch_batches = 3});
  std::vector<std::vector<float>> all;
  for (int i = 0; i < num_batches; ++i) all.push_back(values_of(loader.next()));
  return all;
}

TEST(Loader, ReadsTheSameBatchesWithAnyNumberOfThreads) {
  const auto alone = batches_of(0, 9);  // three epochs
  EXPECT_EQ(alone[2].size(), 1U);       // rank 1's half of the last two
  EXPECT_GE(alone[3][0], 1000);
  EXPECT_EQ(batches_of(1, 9), alone);
  EXPECT_EQ(batches_of(4, 9), alone);
}

TEST(Loader, LeavesTheSamplerWhereItsCallerIs) {
  const CountingDataset dataset;
  Sampler sampler(kSampler), alone(kSampler);
  Loader loader(dataset, sampler, 0, 1, {.num_threads = 2, .prefetch_batches = 4});
  for (int i = 0; i < 5; ++i) {
    (void)loader.next();
    (void)alone.next();
    EXPECT_EQ(sampler.position(), alone.position()) << i;
  }
}

TEST(Loader, GoesOnFromWhereARestorePutsTheSampler) {
  const CountingDataset dataset;
  Sampler sampler(kSampler);
  Loader loader(dataset, sampler, 0, 1, {.num_threads = 2, .prefetch_batches = 4});
  (void)loader.next();
  const SamplerPosition kept = sampler.position();
  const std::vector<float> second = values_of(loader.next());
  (void)loader.next();
  sampler.set_position(kept);
  EXPECT_EQ(values_of(loader.next()), second);
}

TEST(Loader, ReadsNoFurtherAheadThanAllowed) {
  const CountingDataset dataset;
  Sampler sampler(kSampler);
  Loader loader(dataset, sampler, 0, 1, {.num_threads = 1, .prefetch_batches = 2});
  (void)loader.next();
  EXPECT_TRUE(tests::comes_true([&] { return dataset.num_reads() == 1 + 2; }));
  EXPECT_TRUE(tests::stays_true([&] { return dataset.num_reads() == 1 + 2; }, 0.06));
}

TEST(Loader, ReadsABatchOnlyWhenItIsAskedForWhereNoneIsReadAhead) {
  const CountingDataset dataset;
  Sampler sampler(kSampler);
  Loader loader(dataset, sampler, 1, 2, {.num_threads = 1, .prefetch_batches = 0});
  const std::vector<std::vector<float>> expected = batches_of(0, 7);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(values_of(loader.next()), expected[static_cast<size_t>(i)]);
    EXPECT_TRUE(tests::stays_true([&] { return dataset.num_reads() == i + 1; }, 0.01));
  }
  EXPECT_EQ(loader.num_ready(), std::nullopt);
}

TEST(Loader, TellsOfABadSampleWhenItsBatchIsAskedFor) {
  CountingDataset dataset;
  dataset.bad_sample = 7;
  Sampler sampler({.num_samples = 10, .global_batch_size = 4, .shuffle = false});
  Loader loader(dataset, sampler, 0, 1, {.num_threads = 3, .prefetch_batches = 3});
  EXPECT_THAT(values_of(loader.next()), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THROW(loader.next(), Error);
}

/// A source that blocks until it is released.
class StandingDataset final : public Dataset {
 public:
  explicit StandingDataset(std::shared_future<void> goes_on) : goes_on_(std::move(goes_on)) {}
  int64_t num_samples() const override { return data_.num_samples(); }
  SampleSpec spec() const override { return data_.spec(); }
  std::string digest() const override { return ""; }
  Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override {
    goes_on_.wait();
    return data_.get(indices_B, epoch);
  }

 private:
  const std::shared_future<void> goes_on_;
  const CountingDataset data_;
};

TEST(Loader, WaitsForTheSameBatchAgainWhereAWaitWasLeft) {
  std::promise<void> go;
  const StandingDataset dataset(go.get_future().share());
  Sampler sampler(kSampler);
  Loader loader(dataset, sampler, 1, 2, {.num_threads = 2, .prefetch_batches = 3});
  const SamplerPosition begin = loader.position();
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(loader.next_unless([] { return true; }));
    EXPECT_EQ(loader.position(), begin);
    const Batch without = loader.without_samples();
    EXPECT_EQ(without.samples.targets_BY.size(0), 0);
    EXPECT_EQ(without.global_num_samples, 4);
    loader.go_back_to(begin);
  }
  go.set_value();
  EXPECT_EQ(values_of(loader.next()), batches_of(0, 1)[0]);
}

TEST(Loader, AWaitCanBeLeftThoughNoneIsReadAhead) {
  std::promise<void> go;
  const StandingDataset dataset(go.get_future().share());
  const DataOptions options{.loader_threads = 0};
  Sampler sampler(kSampler);
  Loader loader(dataset, sampler, 1, 2, options.loader(dataset));
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(loader.next_unless([] { return true; }));
  go.set_value();
  EXPECT_EQ(values_of(loader.next()), batches_of(0, 1)[0]);
}

TEST(Loader, HasAThreadForAGpuWhereverSamplesLie) {
  std::promise<void> go;
  const StandingDataset reads(go.get_future().share());  // usually one thread
  const MemoryDataset lies_ready(at::zeros({4, 2}), at::zeros({4}, at::kLong), 10);
  struct : CountingDataset {
    int64_t usual_threads() const override { return 8; }
  } const waits_for_workers;
  const DataOptions usual, none{.loader_threads = 0}, many{.loader_threads = 5};
  EXPECT_EQ(usual.loader(lies_ready).num_threads, 0);
  EXPECT_EQ(usual.loader(lies_ready, at::kCUDA).num_threads, 1);
  EXPECT_EQ(usual.loader(reads, at::kCUDA).num_threads, 1);
  EXPECT_EQ(usual.loader(waits_for_workers, at::kCUDA).num_threads, 8);
  EXPECT_EQ(none.loader(lies_ready, at::kCUDA).num_threads, 0);
  EXPECT_EQ(many.loader(lies_ready, at::kCUDA).num_threads, 5);
  EXPECT_EQ(many.loader(lies_ready, at::kCUDA).device, at::kCUDA);
}

TEST(Loader, LeavesThreadsBehindWhoseSourceStandsStillAtItsEnd) {
  std::promise<void> go;
  auto dataset = std::make_shared<const StandingDataset>(go.get_future().share());
  const std::weak_ptr<const StandingDataset> kept = dataset;
  Sampler sampler(kSampler);
  {
    Loader loader(std::move(dataset), sampler, 0, 1, {.num_threads = 2, .prefetch_batches = 3});
    EXPECT_FALSE(loader.next_unless([] { return true; }));
  }
  EXPECT_FALSE(kept.expired());
  go.set_value();
  EXPECT_TRUE(tests::comes_true([&] { return kept.expired(); }));
}

TEST(Loader, TellsHowManyBatchesAreReady) {
  const CountingDataset dataset;
  Sampler sampler(kSampler);
  Loader alone(dataset, sampler, 0, 1);
  (void)alone.next();
  EXPECT_EQ(alone.num_ready(), std::nullopt);  // no prefetching
  Loader loader(dataset, sampler, 0, 1, {.num_threads = 1, .prefetch_batches = 3});
  (void)loader.next();
  EXPECT_TRUE(tests::comes_true([&] { return loader.num_ready() == 3; }));
  (void)loader.next();
  const int64_t left = loader.num_ready().value();
  EXPECT_TRUE(left == 2 || left == 3) << left;  // the thread may be quick
}

}  // namespace loader_test
}  // namespace lockstep::data
