#include "dist/reducer/buckets.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::dist {
namespace buckets_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Size {
  int64_t param, num_elements;
};

FlatBuffer buffer_of(const std::vector<Size>& sizes, at::ScalarType dtype = at::kFloat) {
  FlatBuffer buffer;
  int64_t offset_E = 0;
  for (const Size& size : sizes) {
    buffer.slices.push_back({size.param, offset_E, size.num_elements});
    offset_E += size.num_elements;
  }
  buffer.grads_E = at::empty({offset_E}, dtype);
  return buffer;
}

/// "buffer:begin-end(params)"
std::vector<std::string> texts(const std::vector<Bucket>& buckets) {
  std::vector<std::string> all;
  for (const Bucket& bucket : buckets)
    all.push_back(fmt::format("{}:{}-{}({})", bucket.buffer, bucket.begin_E, bucket.end_E,
                              fmt::join(bucket.params, " ")));
  return all;
}

TEST(Buckets, MayBeWholeBuffers) {
  const int64_t small = kFirstBucketBytes / 4;
  EXPECT_THAT(texts(cut_into_buckets({buffer_of({{1, 3 * small}, {0, small}})}, kUnlimitedBytes)),
              ElementsAre(fmt::format("0:0-{}(1 0)", 4 * small)));
}

TEST(Buckets, NoBuffersMakeNone) { EXPECT_THAT(cut_into_buckets({}, 100), IsEmpty()); }

TEST(Buckets, HoldWholeParametersWhileTheyFit) {
  EXPECT_THAT(texts(cut_into_buckets({buffer_of({{4, 10}, {3, 10}, {2, 10}, {1, 5}, {0, 5}})}, 80)),
              ElementsAre("0:0-20(4 3)", "0:20-40(2 1 0)"));
}

TEST(Buckets, CountBytesOfTheBuffersType) {
  EXPECT_THAT(texts(cut_into_buckets({buffer_of({{1, 10}, {0, 10}}, at::kBFloat16)}, 40)),
              ElementsAre("0:0-20(1 0)"));
  EXPECT_THAT(texts(cut_into_buckets({buffer_of({{1, 10}, {0, 10}}, at::kDouble)}, 80)),
              ElementsAre("0:0-10(1)", "0:10-20(0)"));
}

TEST(Buckets, ALargeParameterIsSentInPiecesOfItsOwn) {
  EXPECT_THAT(texts(cut_into_buckets({buffer_of({{2, 10}, {1, 100}, {0, 10}})}, 160)),
              ElementsAre("0:0-10(2)", "0:10-44(1)", "0:44-78(1)", "0:78-110(1)", "0:110-120(0)"));
  EXPECT_THAT(texts(cut_into_buckets({buffer_of({{0, 5}})}, 8)),
              ElementsAre("0:0-2(0)", "0:2-4(0)", "0:4-5(0)"));
}

TEST(Buckets, TheFirstOneIsSmall) {
  const int64_t quarter = kFirstBucketBytes / 4 / 4;
  const FlatBuffer buffer = buffer_of(
      {{5, quarter}, {4, quarter}, {3, quarter}, {2, quarter}, {1, quarter}, {0, quarter}});
  EXPECT_THAT(texts(cut_into_buckets({buffer}, 8 * kFirstBucketBytes)),
              ElementsAre(fmt::format("0:0-{}(5 4 3 2)", 4 * quarter),
                          fmt::format("0:{}-{}(1 0)", 4 * quarter, 6 * quarter)));
}

/// Also where its parameter is larger than a bucket, which is cut.
TEST(Buckets, TheFirstOneIsASmallPieceOfALargeParameter) {
  const int64_t small = kFirstBucketBytes / 4;
  EXPECT_THAT(
      texts(
          cut_into_buckets({buffer_of({{1, 10 * small}, {0, 5 * small}})}, 4 * kFirstBucketBytes)),
      ElementsAre(fmt::format("0:0-{}(1)", small), fmt::format("0:{}-{}(1)", small, 4 * small),
                  fmt::format("0:{}-{}(1)", 4 * small, 7 * small),
                  fmt::format("0:{}-{}(1)", 7 * small, 10 * small),
                  fmt::format("0:{}-{}(0)", 10 * small, 10 * small + (5 * small + 1) / 2),
                  fmt::format("0:{}-{}(0)", 10 * small + (5 * small + 1) / 2, 15 * small)));
}

/// The model's last parameter is a bias, but the biases are complete with the first layer's.
TEST(Buckets, TheFirstOneToBeCompleteIsTheSmallOne) {
  const int64_t quarter = kFirstBucketBytes / 4 / 4;
  const FlatBuffer weights = buffer_of({{6, 3 * quarter}, {4, 3 * quarter}, {2, 3 * quarter}});
  const FlatBuffer biases = buffer_of({{7, 1}, {5, 1}, {3, 1}});
  EXPECT_THAT(texts(cut_into_buckets({weights, biases}, 8 * kFirstBucketBytes)),
              ElementsAre(fmt::format("0:0-{}(6)", 3 * quarter), "1:0-3(7 5 3)",
                          fmt::format("0:{}-{}(4 2)", 3 * quarter, 9 * quarter)));
}

TEST(Buckets, OnlyOneBufferHasASmallFirstBucket) {
  const int64_t half = kFirstBucketBytes / 4 / 2;
  const FlatBuffer early = buffer_of({{8, half}, {6, half}, {4, half}});
  const FlatBuffer late = buffer_of({{7, half}, {5, half}, {3, half}});
  EXPECT_EQ(cut_into_buckets({late, early}, 8 * kFirstBucketBytes).size(), 3U);
  EXPECT_EQ(cut_into_buckets({late, early}, 8 * kFirstBucketBytes)[0].buffer, 1U);
}

TEST(Buckets, StandInTheOrderInWhichBackwardCompletesThem) {
  // Weights and biases in turn: the biases' bucket is complete with the first layer's.
  const FlatBuffer weights = buffer_of({{4, 20}, {2, 20}, {0, 20}});
  const FlatBuffer biases = buffer_of({{5, 1}, {3, 1}, {1, 1}});
  EXPECT_THAT(texts(cut_into_buckets({weights, biases}, 80)),
              ElementsAre("0:0-20(4)", "0:20-40(2)", "1:0-3(5 3 1)", "0:40-60(0)"));
}

TEST(Buckets, FrozenBuffersHaveNone) {
  FlatBuffer frozen = buffer_of({{1, 4}});
  frozen.frozen = true;
  frozen.grads_E = at::Tensor();
  EXPECT_THAT(texts(cut_into_buckets({frozen, buffer_of({{0, 4}})}, 100)), ElementsAre("1:0-4(0)"));
}

TEST(Buckets, ElementsOfNoParameterComeLast) {
  FlatBuffer bare;
  bare.grads_E = at::empty({6}, at::kFloat);
  EXPECT_THAT(texts(cut_into_buckets({bare, buffer_of({{0, 4}})}, 100)),
              ElementsAre("1:0-4(0)", "0:0-6()"));
}

TEST(Buckets, HoldEachElementOnceWithItsParameters) {
  for (const int64_t bucket_bytes : {4, 12, 100, 257, 4000, 1 << 20}) {
    std::vector<Size> sizes;
    for (int64_t i = 60; i >= 0; --i) sizes.push_back({i, i * i * 7 % 211});
    const FlatBuffer buffer = buffer_of(sizes);
    std::vector<int> times(static_cast<size_t>(buffer.grads_E.numel()));
    for (const Bucket& bucket : cut_into_buckets({buffer}, bucket_bytes)) {
      EXPECT_GT(bucket.num_elements(), 0);
      EXPECT_LE(bucket.num_elements() * 4, bucket_bytes);
      for (int64_t e = bucket.begin_E; e < bucket.end_E; ++e) ++times[static_cast<size_t>(e)];
      std::vector<int64_t> params;
      for (const FlatSlice& slice : buffer.slices)
        if (slice.num_elements > 0 && slice.offset_E < bucket.end_E &&
            slice.offset_E + slice.num_elements > bucket.begin_E)
          params.push_back(slice.param);
      EXPECT_EQ(bucket.params, params);
    }
    EXPECT_THAT(times, ::testing::Each(1));
  }
}

TEST(Buckets, NeedASize) { EXPECT_THROW(cut_into_buckets({}, 0), Error); }

/// Buckets cut at rows, as for buckets that are divided among ranks.
std::vector<std::string> texts_by_rows(const std::vector<Size>& sizes, int64_t bucket_bytes,
                                       const std::vector<int64_t>& rows, int num_pieces) {
  return texts(cut_into_buckets({buffer_of(sizes)}, bucket_bytes, rows, num_pieces));
}

TEST(BucketsByRows, PartALargeParameterBetweenRows) {
  // 25 rows of 4 elements, 9 rows a bucket at most
  EXPECT_THAT(texts_by_rows({{0, 100}}, 160, {4}, 1),
              ElementsAre("0:0-32(0)", "0:32-68(0)", "0:68-100(0)"));
}

TEST(BucketsByRows, PreferAsManyRowsForEachPiece) {
  EXPECT_THAT(texts_by_rows({{0, 100}}, 160, {4}, 2),
              ElementsAre("0:0-32(0)", "0:32-64(0)", "0:64-100(0)"));
  EXPECT_THAT(texts_by_rows({{0, 100}}, 160, {4}, 8),
              ElementsAre("0:0-32(0)", "0:32-64(0)", "0:64-100(0)"));
  EXPECT_THAT(texts_by_rows({{0, 100}}, 160, {4}, 16),
              ElementsAre("0:0-32(0)", "0:32-68(0)", "0:68-100(0)"))
      << "16 rows do not fit";
}

TEST(BucketsByRows, CutInsideOfRowsLongerThanABucket) {
  EXPECT_THAT(texts_by_rows({{0, 5000}}, 8192, {2500}, 2),
              ElementsAre("0:0-2048(0)", "0:2048-3524(0)", "0:3524-5000(0)"));
  EXPECT_THAT(texts_by_rows({{0, 5000}}, 8, {5000}, 2),
              ElementsAre("0:0-1024(0)", "0:1024-2048(0)", "0:2048-3072(0)", "0:3072-4096(0)",
                          "0:4096-5000(0)"));
}

TEST(BucketsByRows, TheFirstOneIsNoPieceOfARow) {
  const int64_t small = kFirstBucketBytes / 4, row = 3 * small;
  EXPECT_THAT(
      texts_by_rows({{0, 4 * row}}, 4 * kFirstBucketBytes, {row}, 1),
      ElementsAre(fmt::format("0:0-{}(0)", 2 * row), fmt::format("0:{}-{}(0)", 2 * row, 3 * row),
                  fmt::format("0:{}-{}(0)", 3 * row, 4 * row)));
}

TEST(BucketsByRows, ParametersThatFitAreWhole) {
  EXPECT_THAT(texts_by_rows({{1, 12}, {0, 100}, {2, 5}}, 160, {4, 12, 1}, 2),
              ElementsAre("0:112-117(2)", "0:0-12(1)", "0:12-44(0)", "0:44-76(0)", "0:76-112(0)"));
}

}  // namespace buckets_test
}  // namespace lockstep::dist
