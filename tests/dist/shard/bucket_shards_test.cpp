#include "dist/reducer/buckets.h"

#include <cstdlib>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::dist {
namespace bucket_shards_test {

using ::testing::ElementsAre;

struct Shape {
  int64_t num_rows, row_E;
};

/// A buffer of parameters 0, 1, ... and what a row of each has.
struct Layout {
  explicit Layout(const std::vector<Shape>& shapes) {
    int64_t offset_E = 0;
    for (const Shape& shape : shapes) {
      const int64_t num_elements = shape.num_rows * shape.row_E;
      buffer.slices.push_back({static_cast<int64_t>(rows.size()), offset_E, num_elements});
      rows.push_back(shape.row_E);
      offset_E += num_elements;
    }
    buffer.grads_E = at::empty({offset_E}, at::kFloat);
  }

  std::vector<int64_t> borders(int num_pieces, int64_t begin_E = 0, int64_t end_E = -1) const {
    const Bucket bucket{0, begin_E, end_E < 0 ? buffer.grads_E.numel() : end_E, {}};
    const BucketShards pieces = cut_into_pieces(bucket, buffer, rows, num_pieces);
    std::vector<int64_t> found;
    for (int piece = 0; piece <= num_pieces; ++piece) found.push_back(pieces.begin(piece));
    return found;
  }

  FlatBuffer buffer;
  std::vector<int64_t> rows;
};

TEST(BucketShards, AreCutAtTheNearestRows) {
  EXPECT_THAT(Layout({{10, 7}}).borders(1), ElementsAre(0, 70));
  EXPECT_THAT(Layout({{10, 7}}).borders(2), ElementsAre(0, 35, 70));
  EXPECT_THAT(Layout({{10, 7}}).borders(3), ElementsAre(0, 21, 49, 70));      // even: 23, 46
  EXPECT_THAT(Layout({{10, 7}}).borders(4), ElementsAre(0, 14, 35, 49, 70));  // even: 17, 35, 52
}

TEST(BucketShards, RowsBeginAnewWithEachParameter) {
  // 12 elements in rows of 4, then 9 in rows of 3, then 9 alone
  EXPECT_THAT(Layout({{3, 4}, {3, 3}, {9, 1}}).borders(3), ElementsAre(0, 8, 21, 30));
  EXPECT_THAT(Layout({{3, 4}, {3, 3}, {9, 1}}).borders(4), ElementsAre(0, 8, 15, 22, 30));
}

TEST(BucketShards, OfABucketInTheMidstOfABufferAndOfAParameter) {
  EXPECT_THAT(Layout({{2, 5}, {20, 5}}).borders(2, 30, 90), ElementsAre(0, 30, 60));
  EXPECT_THAT(Layout({{2, 5}, {20, 5}}).borders(4, 30, 90), ElementsAre(0, 15, 30, 45, 60));
  // a bucket that begins inside of a row: the rows stay those of the parameter
  EXPECT_THAT(Layout({{2, 5}, {20, 5}}).borders(2, 32, 92), ElementsAre(0, 28, 60));
}

TEST(BucketShards, OfFewElementsMayBeEmpty) {
  EXPECT_THAT(Layout({{3, 1}}).borders(8), ElementsAre(0, 0, 0, 1, 1, 1, 2, 2, 3));
  EXPECT_THAT(Layout({{1, 2}}).borders(2), ElementsAre(0, 0, 2)) << "a row is whole if short";
}

TEST(BucketShards, ARowLongerThanAPieceIsCutInside) {
  EXPECT_THAT(Layout({{1, 10'000}}).borders(4), ElementsAre(0, 2048, 5120, 7168, 10'000));
  EXPECT_THAT(Layout({{2, 5'000}}).borders(4), ElementsAre(0, 2048, 5000, 7048, 10'000));
}

TEST(BucketShards, WithoutSlicesAreCutAnywhere) {
  FlatBuffer buffer;
  buffer.grads_E = at::empty({10}, at::kFloat);
  const BucketShards pieces = cut_into_pieces({0, 0, 10, {}}, buffer, {}, 4);
  EXPECT_THAT((std::vector{pieces.size(0), pieces.size(1), pieces.size(2), pieces.size(3)}),
              ElementsAre(2, 3, 2, 3));
}

/// The header's promises are checked for many layouts.
TEST(BucketShards, AreBalancedToARow) {
  for (int num_pieces = 1; num_pieces <= 8; ++num_pieces)
    for (int64_t row_E = 1; row_E <= 5'000; row_E = row_E * 3 + 1)
      for (const int64_t num_rows : {1, 2, 3, 7, 10, 64}) {
        const Layout layout({{num_rows, row_E}, {5, 1}, {num_rows, 3}});
        const std::vector<int64_t> borders = layout.borders(num_pieces);
        const int64_t num_elements = layout.buffer.grads_E.numel();
        const int64_t even_E = num_elements / num_pieces;
        const int64_t unit_E = std::max<int64_t>(3, row_E <= even_E ? row_E : kCutElements);
        for (size_t i = 0; i + 1 < borders.size(); ++i) {
          const int64_t size = borders[i + 1] - borders[i];
          EXPECT_GE(size, 0);
          EXPECT_LE(std::abs(size - even_E), unit_E + 1) << num_pieces << " " << row_E;
          EXPECT_LE(size, 2 * even_E + kCutElements);
          const int64_t in_first = borders[i];
          if (in_first < num_rows * row_E && row_E <= even_E) {
            EXPECT_EQ(in_first % row_E, 0) << num_pieces << " " << row_E;
          }
        }
      }
}

TEST(BucketShards, TravelInWindowsOfOneSize) {
  const BucketShards pieces({0, 5, 6, 10});
  EXPECT_EQ(pieces.largest(), 5);
  EXPECT_EQ(pieces.window_begin(0), 0);
  EXPECT_EQ(pieces.window_begin(1), 5);
  EXPECT_EQ(pieces.window_begin(2), 5) << "the last window ends with the bucket";
  EXPECT_FALSE(pieces.are_equal());
  EXPECT_TRUE(BucketShards({0, 5, 10}).are_equal());
  EXPECT_THROW(BucketShards({0, 5, 3}), Error);
  EXPECT_THROW(BucketShards({1, 5}), Error);
}

TEST(RowBorders, ComeFromTheFirstDimension) {
  ParamTable params;
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{4, 3, 2, 2}, {7}, {}, {0, 3}})
    params.push_back({.tensor = at::empty(shape)});
  EXPECT_THAT(row_elements(params), ElementsAre(12, 1, 1, 1));
}

TEST(RowBorders, MayBeThoseOfSeveralRows) {
  const RowBorders rows{70, 7};
  EXPECT_EQ(rows.nearest(34), 35);
  EXPECT_EQ(rows.nearest(34, 4), 28);
  EXPECT_EQ(rows.nearest(66, 4), 70) << "the end is a border too";
  EXPECT_EQ(rows.nearest(70, 4), 70);
}

TEST(BucketAssignment, GivesWholeMatricesToRanksByCost) {
  ParamTable params;
  std::vector<FlatBuffer> buffers;
  // Costs by 1000: 64, 27, 32, 8; then a buffer that is divided by rows.
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{40, 40}, {30, 30}, {80, 20}, {20, 20}, {6, 5}}) {
    const bool is_matrix = shape[0] > 6;
    params.push_back({.name = fmt::format("p{}", params.size()),
                      .tensor = at::empty(shape),
                      .is_matrix = is_matrix});
    FlatBuffer buffer{.grads_E = at::empty({params.back().tensor.numel()}), .is_matrix = is_matrix};
    buffer.slices = {{static_cast<int64_t>(params.size()) - 1, 0, buffer.grads_E.numel()}};
    buffers.push_back(buffer);
  }
  SyncOptions options{.bucket_bytes = 400, .shard_optimizer = true};
  std::vector<std::vector<size_t>> owned;
  for (const int rank : {0, 1}) {
    BucketAssignment assignment(params, options, rank, 2);
    assignment.rebuild(buffers);
    std::vector<size_t> here;
    for (const ParamShard& region : assignment.local_shards()) {
      here.push_back(region.buffer);
      if (!buffers[region.buffer].is_matrix) continue;
      EXPECT_EQ(region.num_elements(), buffers[region.buffer].grads_E.numel());
    }
    owned.push_back(here);
  }
  EXPECT_THAT(owned[0], ElementsAre(0, 4));
  EXPECT_THAT(owned[1], ElementsAre(1, 2, 3, 4));
}

}  // namespace bucket_shards_test
}  // namespace lockstep::dist
