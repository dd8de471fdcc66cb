// The plan of a save far larger than any machine here: forms without memory, real divisions.
#include <algorithm>
#include <chrono>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/format/bundle_index.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/save/shard_writer.h"
#include "dist/reducer/buckets.h"

namespace lockstep::checkpoint {
namespace scale_test {

using ::testing::HasSubstr;

/// Shapes of a network of `num_layers` transformer blocks of this width.
std::vector<std::vector<int64_t>> transformer(int64_t num_layers, int64_t width) {
  std::vector<std::vector<int64_t>> shapes = {{50'000, width}};
  for (int64_t layer = 0; layer < num_layers; ++layer)
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{3 * width, width},
                                                                               {3 * width},
                                                                               {width, width},
                                                                               {width},
                                                                               {4 * width, width},
                                                                               {4 * width},
                                                                               {width, 4 * width},
                                                                               {width},
                                                                               {width},
                                                                               {width}})
      shapes.push_back(shape);
  return shapes;
}

at::Tensor without_memory(const std::vector<int64_t>& shape) {
  return at::empty(shape, at::TensorOptions(at::kFloat).device(at::kMeta));
}

/// Weights that every rank holds, and two moments divided over the ranks as the gradients are.
class PlannedState {
 public:
  PlannedState(const std::vector<std::vector<int64_t>>& shapes, int world_size)
      : held_(shapes.size() * static_cast<size_t>(world_size)), world_size_(world_size) {
    FlatBuffer buffer;
    std::vector<int64_t> row_E;
    for (size_t i = 0; i < shapes.size(); ++i) {
      weights_.push_back(without_memory(shapes[i]));
      const int64_t num_elements = weights_[i].numel();
      buffer.slices.push_back(
          {.param = static_cast<int64_t>(i), .offset_E = num_params, .num_elements = num_elements});
      row_E.push_back(std::max<int64_t>(num_elements / shapes[i][0], 1));
      num_params += num_elements;
    }
    buffer.values_E = without_memory({num_params});
    buffer.grads_E = buffer.values_E;
    for (const dist::Bucket& bucket :
         dist::cut_into_buckets({buffer}, kBucketBytes, row_E, world_size))
      divide(bucket, buffer, dist::cut_into_pieces(bucket, buffer, row_E, world_size));
  }

  StateList of_rank(int rank) const {
    StateList state;
    for (size_t i = 0; i < weights_.size(); ++i)
      state.push_back({.key = fmt::format("model/blocks/{}/weight", i), .tensor = weights_[i]});
    for (const char* moment : {"first_moment", "second_moment"})
      for (size_t i = 0; i < weights_.size(); ++i)
        state.push_back({.key = fmt::format("optimizer/blocks/{}/weight/{}", i, moment),
                         .tensor = weights_[i],
                         .held = held_[index(i, rank)]});
    return state;
  }

  int64_t num_params = 0;

 private:
  /// sync.bucket_bytes, so that a rank's piece of a bucket is about a row: two moments in pieces of
  /// 64 KiB are a million slices. With 4 MiB they would be twenty million, an index of 1 GB.
  static constexpr int64_t kBucketBytes = 64 << 20;

  size_t index(size_t param, int rank) const {
    return param * static_cast<size_t>(world_size_) + static_cast<size_t>(rank);
  }
  void divide(const dist::Bucket& bucket, const FlatBuffer& buffer,
              const dist::BucketShards& pieces) {
    for (int rank = 0; rank < world_size_; ++rank) {
      const int64_t begin_E = bucket.begin_E + pieces.begin(rank);
      const int64_t end_E = begin_E + pieces.size(rank);
      for (const int64_t param : bucket.params) {
        const FlatSlice& slice = buffer.slices[static_cast<size_t>(param)];
        const ElementRange range{
            std::max(begin_E, slice.offset_E) - slice.offset_E,
            std::min(end_E, slice.offset_E + slice.num_elements) - slice.offset_E};
        if (range.begin_E >= range.end_E) continue;
        std::vector<ElementRange>& held = held_[index(static_cast<size_t>(param), rank)];
        held.insert(std::partition_point(
                        held.begin(), held.end(),
                        [&](const ElementRange& one) { return one.begin_E < range.begin_E; }),
                    range);
      }
    }
  }

  std::vector<at::Tensor> weights_;
  std::vector<std::vector<ElementRange>> held_;  // by parameter and rank
  int world_size_;
};

struct Planned {
  int64_t rows = 0, index_bytes = 0, largest_report = 0, smallest_shard = 0, largest_shard = 0;
};

/// Sizes that the ranks of a save would write and send, one rank after the other, and its index.
Planned plan(const PlannedState& state, int world_size) {
  Planned result{.smallest_shard = INT64_MAX};
  StagingBuffer memory;  // of which nothing is touched
  IndexBuilder builder(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    const std::vector<StoredTensor> pieces = save_pieces(state.of_rank(rank), 1, /*sparse=*/false);
    const SavePlan plan(pieces, world_size);
    const StagedShard staged(pieces, plan.parts_of(rank), rank, &memory);
    const std::string report = shard_report(staged);
    builder.add(report);
    result.largest_report = std::max(result.largest_report, static_cast<int64_t>(report.size()));
    result.smallest_shard = std::min(result.smallest_shard, staged.num_bytes());
    result.largest_shard = std::max(result.largest_shard, staged.num_bytes());
  }
  const BundleIndex index = builder.finish(save_pieces(state.of_rank(0), 1, false));
  for (const auto& [name, entry] : index.entries)
    result.rows += 1 + static_cast<int64_t>(entry.slices.size());
  const std::string bytes = encode_index(index);
  result.index_bytes = static_cast<int64_t>(bytes.size());
  EXPECT_EQ(decode_index(bytes, "planned").entries.size(), index.entries.size());
  return result;
}

Planned planned(const char* name, const std::vector<std::vector<int64_t>>& shapes, int world_size) {
  const auto start = std::chrono::steady_clock::now();
  const PlannedState state(shapes, world_size);
  const Planned result = plan(state, world_size);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  fmt::print(
      "{}: {:.2f} B parameters on {} ranks: {} rows, index of {:.1f} MB, a rank writes {:.1f} to "
      "{:.1f} MB and tells rank 0 {:.1f} kB; computed in {:.1f} s\n",
      name, static_cast<double>(state.num_params) / 1e9, world_size, result.rows,
      static_cast<double>(result.index_bytes) / 1e6,
      static_cast<double>(result.smallest_shard) / 1e6,
      static_cast<double>(result.largest_shard) / 1e6,
      static_cast<double>(result.largest_report) / 1e3, took.count());
  return result;
}

TEST(Scale, TenBillionParametersOnAThousandRanksHaveAPlanAndAnIndex) {
  const Planned result = planned("transformer", transformer(3, 16'384), 1024);
  // weights once, two moments: 12 bytes a parameter, near-equal over the ranks
  const double even = 12 * 10.48e9 / 1024;
  EXPECT_GT(static_cast<double>(result.smallest_shard), 0.8 * even);
  EXPECT_LT(static_cast<double>(result.largest_shard), 1.2 * even);
  EXPECT_LT(result.index_bytes, result.rows * 100);
}

TEST(Scale, RowsGrowWithTheRanksAndWhatARankTellsDoesNot) {
  const auto shapes = transformer(4, 1024);
  const Planned few = planned("small", shapes, 64), many = planned("small", shapes, 256);
  EXPECT_LE(many.rows, 4 * few.rows + 1000);
  EXPECT_LE(many.index_bytes, 4 * few.index_bytes + 100'000);
  EXPECT_LE(many.largest_report, 2 * few.largest_report);
}

TEST(Scale, MoreRanksThanFileNamesHaveDigitsForAreRefusedBeforeTheFirstSave) {
  const std::vector<StoredTensor> pieces;
  EXPECT_NO_THROW(SavePlan(pieces, 99'999));
  try {
    const SavePlan plan(pieces, 100'000);
    FAIL() << "five digits";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kConfig);
    EXPECT_TRUE(fault.on_every_rank());
    EXPECT_THAT(fault.what(), HasSubstr("at most 99999 ranks"));
  }
}

}  // namespace scale_test
}  // namespace lockstep::checkpoint
