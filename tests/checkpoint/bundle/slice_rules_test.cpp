// Rules for slices in an index: checksums are right in all of these.
#include <algorithm>
#include <ctime>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/format/bundle_encoding.h"
#include "checkpoint/format/bundle_index.h"
#include "checkpoint/format/entry_proto.h"
#include "checkpoint/format/tensor_slice.h"
#include "tests/checkpoint/bundle/sliced_save.h"
#include "tests/checkpoint/bundle/table_rows.h"

namespace lockstep::checkpoint {
namespace slice_rules_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using tests::cut_along;
using tests::cut_at;

/// Error message of decoding; "sound" if there is none.
std::string verdict(const TableRows& rows) {
  try {
    decode_index(encode_table(rows), "m-1.index");
    return "sound";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kBadData);
    return fault.what();
  }
}

/// Rows of one float32 tensor `t` in these slices, places made up, without any check.
TableRows rows_of(const std::vector<int64_t>& shape, const std::vector<TensorBox>& boxes,
                  int32_t dtype = 1, int64_t item_bytes = 4) {
  pb::BundleHeaderProto header;
  header.set_num_shards(2);
  BundleEntry entry;
  entry.dtype = dtype;
  entry.shape = shape;
  TableRows rows = {{"", header.SerializeAsString()}};
  int64_t offset = 0;
  for (const TensorBox& box : boxes) {
    BundleSlice slice{{1, offset, box.num_elements() * item_bytes, 7}, box};
    offset = slice.end();
    entry.slices.push_back(slice);
    rows[slice_key("t", with_whole_dims(box, shape))] = to_proto(dtype, slice).SerializeAsString();
  }
  rows["t"] = to_proto(entry).SerializeAsString();
  return rows;
}

std::string hex(const std::string& bytes) {
  return fmt::format("{:02x}",
                     fmt::join(std::vector<unsigned char>(bytes.begin(), bytes.end()), ""));
}

/// Expected bytes were written by TensorFlow 2.21 (docs/design/checkpoint_format.md, Slices).
TEST(SliceKey, HasTensorFlowsBytes) {
  EXPECT_EQ(hex(slice_key("rows", {{4, 0}, {4, -1}})), "00726f7773000101028484807f");
  EXPECT_EQ(hex(slice_key("columns", {{0, 2}, {-1, 6}})), "00636f6c756d6e7300010102807f8286");
  EXPECT_EQ(hex(slice_key({"a\0\xff", 3}, {{63, 64}, {8191, 8192}})),
            "006100ffff0000010102bfdfffc040e02000");
}

TEST(SliceRules, SoundCutsPass) {
  EXPECT_EQ(verdict(rows_of({6, 7}, cut_along({6, 7}, 0, {1, 5}))), "sound");
  EXPECT_EQ(verdict(rows_of({6, 7}, cut_along({6, 7}, 1, {1, 5, 1}))), "sound");
  EXPECT_EQ(verdict(rows_of({6, 7}, cut_at({6, 7}, {1, 20, 42}))), "sound");
  EXPECT_EQ(verdict(rows_of({6, 7}, {{{0, 0}, {6, 7}}})), "sound");
}

TEST(SliceRules, WhatIsNoPartitionIsRefused) {
  const std::vector<int64_t> s = {6, 7};
  const std::vector<std::pair<std::vector<TensorBox>, std::string>> cases = {
      {{{{0, 0}, {3, 7}}}, "slices have 21 of 42 elements"},
      {{{{0, 0}, {3, 7}}, {{2, 0}, {3, 7}}}, "slices 0:3,0:7 and 2:5,0:7 overlap"},
      {{{{0, 0}, {3, 7}}, {{0, 0}, {3, 7}}}, "overlap"},
      {{{{0, 0}, {6, 7}}, {{0, 0}, {6, 7}}}, "more elements than the tensor"},
      {{{{0, 0}, {6, 4}}, {{0, 3}, {6, 3}}}, "slices 0:6,0:4 and 0:6,3:6 overlap"},
      {{{{0, 0}, {6, 0}}, {{0, 0}, {6, 7}}}, "has no elements"},
      {{{{4, 0}, {3, 7}}, {{0, 0}, {4, 7}}}, "a slice begins at 4 and has 3 of 6 in dimension 0"},
      {{{{-1, 0}, {3, 7}}}, "a slice begins at -1"},
      {{{{0, 0}, {-5, 7}}}, "a slice begins at 0 and has -5"},
      {{{{0}, {6}}}, "a slice has 1 dimensions, the tensor 2"},
      // as many elements as the tensor, some twice
      {{{{0, 0}, {3, 3}}, {{3, 3}, {3, 4}}, {{0, 3}, {3, 4}}, {{1, 0}, {3, 3}}}, "overlap"},
  };
  for (const auto& [boxes, expected] : cases) {
    TableRows rows = rows_of(s, {{{0, 0}, {6, 7}}});
    pb::BundleEntryProto parent;
    parent.ParseFromString(rows["t"]);
    parent.clear_slices();
    for (const TensorBox& box : boxes) {
      auto* slice = parent.add_slices();
      for (size_t d = 0; d < box.start.size(); ++d) {
        auto* extent = slice->add_extent();
        extent->set_start(box.start[d]);
        extent->set_length(box.length[d]);
      }
    }
    rows["t"] = parent.SerializeAsString();
    EXPECT_THAT(verdict(rows), HasSubstr("tensor 't': "));
    EXPECT_THAT(verdict(rows), HasSubstr(expected));
  }
}

TEST(SliceRules, TypesAndShapesThatTensorFlowDoesNotSlice) {
  const auto boxes = cut_along({4}, 0, {2, 2});
  for (const int32_t dtype : {1, 3, 9, 14}) {
    const int64_t item_bytes = dtype == 9 ? 8 : dtype == 14 ? 2 : 4;
    EXPECT_EQ(verdict(rows_of({4}, boxes, dtype, item_bytes)), "sound") << dtype;
  }
  EXPECT_THAT(verdict(rows_of({4}, boxes, 19, 2)), HasSubstr("float16 cannot be saved in slices"));
  EXPECT_THAT(verdict(rows_of({4}, boxes, 7, 4)), HasSubstr("string cannot be saved in slices"));
  EXPECT_THAT(verdict(rows_of({}, {TensorBox{}})), HasSubstr("a scalar cannot"));
  EXPECT_THAT(verdict(rows_of({0, 3}, {{{0, 0}, {0, 3}}})), HasSubstr("has no elements"));
  const int64_t much = int64_t{1} << 40;
  EXPECT_THAT(verdict(rows_of({much, much}, {{{0, 0}, {much, much}}})), HasSubstr("63 bits"));
}

TEST(SliceRules, RowsOfSlicesAndOfTheirTensorsBelongTogether) {
  const std::vector<TensorBox> boxes = cut_along({4}, 0, {1, 3});
  const std::string first = slice_key("t", boxes[0]), second = slice_key("t", boxes[1]);
  TableRows rows = rows_of({4}, boxes);
  rows.erase(second);
  EXPECT_THAT(verdict(rows), HasSubstr("slice 1:4 has no position"));
  rows = rows_of({4}, boxes);
  rows[slice_key("t", {{0}, {2}})] = rows[first];
  EXPECT_THAT(verdict(rows), HasSubstr("3 slices have positions, 2 belong to a tensor"));
  rows = rows_of({4}, boxes);
  rows.erase("t");
  EXPECT_THAT(verdict(rows), HasSubstr("2 slices have positions, 0 belong to a tensor"));
  rows = rows_of({4}, boxes);
  std::swap(rows[first], rows[second]);
  EXPECT_THAT(verdict(rows), HasSubstr("another type or shape at its position"));
  rows = rows_of({4}, boxes);
  rows[first] = rows_of({1}, {{{0}, {1}}}, 3)[slice_key("t", {{0}, {-1}})];
  EXPECT_THAT(verdict(rows), HasSubstr("another type or shape at its position"));
  rows = rows_of({4}, boxes);
  rows[first] = rows["t"];
  EXPECT_THAT(verdict(rows), HasSubstr("another type or shape at its position"));
  rows = rows_of({4}, boxes);
  pb::BundleEntryProto parent;
  parent.ParseFromString(rows["t"]);
  parent.set_offset(8);
  rows["t"] = parent.SerializeAsString();
  EXPECT_THAT(verdict(rows), HasSubstr("has slices and a position of its own"));
}

/// TensorFlow writes the key of a slice as the slice was given: a whole dimension with its length,
/// if somebody gave that.
TEST(SliceRules, AKeyMayGiveTheLengthOfAWholeDimension) {
  TableRows rows = rows_of({4, 3}, cut_along({4, 3}, 0, {4}));
  pb::BundleEntryProto parent;
  parent.ParseFromString(rows["t"]);
  auto* extent = parent.mutable_slices(0)->mutable_extent(1);
  extent->set_length(3);
  const std::string place = rows[slice_key("t", {{0, 0}, {-1, -1}})];
  rows.erase(slice_key("t", {{0, 0}, {-1, -1}}));
  rows["t"] = parent.SerializeAsString();
  rows[slice_key("t", {{0, 0}, {-1, 3}})] = place;
  EXPECT_EQ(verdict(rows), "sound");
}

/// Processor time of this thread, the least of three runs.
double cpu_seconds_of(const std::function<void()>& body) {
  double least = 1e9;
  for (int run = 0; run < 3; ++run) {
    timespec start{}, end{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    body();
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    least = std::min(least, static_cast<double>(end.tv_sec - start.tv_sec) +
                                1e-9 * static_cast<double>(end.tv_nsec - start.tv_nsec));
  }
  return least;
}

/// Eight times as many take eight times as long, and a bit for the sorting; each with each would
/// take 64 times.
void expect_near_linear(const char* what,
                        const std::function<std::function<void()>(int64_t)>& make) {
  constexpr int64_t kFew = 4'000;
  const double few = cpu_seconds_of(make(kFew)), many = cpu_seconds_of(make(8 * kFew));
  EXPECT_LT(many, 30 * few) << what << ": " << few << " s, then " << many << " s";
}

TEST(SliceRules, ManySlicesTakeTimeInProportion) {
  expect_near_linear("an index", [](int64_t n) {
    const std::vector<int64_t> lengths(static_cast<size_t>(n), 1);
    return [rows = rows_of({n, 2}, cut_along({n, 2}, 0, lengths))] {
      EXPECT_EQ(verdict(rows), "sound");
    };
  });
  expect_near_linear("cut along the first dimension", [](int64_t n) {
    const std::vector<int64_t> lengths(static_cast<size_t>(n), 1);
    return [n, boxes = cut_along({n, 2}, 0, lengths)] { require_cover(boxes, {n, 2}); };
  });
  expect_near_linear("cut along the last dimension", [](int64_t n) {
    const std::vector<int64_t> lengths(static_cast<size_t>(n), 1);
    return [n, boxes = cut_along({2, n}, 1, lengths)] { require_cover(boxes, {2, n}); };
  });
  expect_near_linear("all begin at the same place in both dimensions but one", [](int64_t n) {
    std::vector<TensorBox> layers;
    for (int64_t i = 0; i < n; ++i) layers.push_back({{0, i % 2, i / 2}, {2, 1, 1}});
    return [n, layers] { require_cover(layers, {2, 2, n / 2}); };
  });
}

TEST(SliceRules, AGridOfManyDimensionsIsRefusedAfterABoundedNumberOfSteps) {
  std::vector<TensorBox> grid;  // no save needs one
  for (int64_t i = 0; i < 1 << 16; ++i) {
    TensorBox box{std::vector<int64_t>(17, 0), std::vector<int64_t>(17, 1)};
    for (size_t d = 0; d < 16; ++d) box.start[d] = (i >> d) & 1;
    box.length[0] = 1;
    box.length[16] = 2;
    grid.push_back(box);
  }
  std::vector<int64_t> twos(17, 2);
  require_cover(grid, twos);  // runs
  for (TensorBox& box : grid) std::rotate(box.start.begin(), box.start.end() - 1, box.start.end());
  for (TensorBox& box : grid)
    std::rotate(box.length.begin(), box.length.end() - 1, box.length.end());
  EXPECT_THROW(require_cover(grid, twos), std::runtime_error);
}

TEST(SliceRules, AnIndexMayHaveAsManyTensorsAsItsFileHolds) {
  pb::BundleHeaderProto header;
  header.set_num_shards(1);
  pb::BundleEntryProto scalar;
  scalar.set_dtype(1);
  scalar.set_size(4);
  TableRows rows = {{"", header.SerializeAsString()}};
  for (int i = 0; i < 300'000; ++i)
    rows[fmt::format("model/scalars/{:x}", i)] = scalar.SerializeAsString();
  EXPECT_EQ(verdict(rows), "sound");
}

TEST(SliceRules, RowsOfFewBytesDoNotUnfoldToMuchMemory) {
  pb::BundleHeaderProto header;
  header.set_num_shards(1);
  TableRows rows = {{"", header.SerializeAsString()}};
  for (uint32_t i = 0; i < 600'000; ++i)  // four or five bytes each in the table
    rows[{'\0', static_cast<char>(i >> 16), static_cast<char>(i >> 8), static_cast<char>(i)}] = "";
  EXPECT_THAT(verdict(rows),
              HasSubstr("more tensors and slices than an index of its size may have"));
}

TEST(SliceRules, AnEntryThatClaimsSlicesWithoutPlacesIsRefusedBeforeItIsParsed) {
  TableRows rows = rows_of({4}, cut_along({4}, 0, {1, 3}));
  std::string many;
  for (int i = 0; i < 1'000'000; ++i) many += std::string("\x3a\x00", 2);  // empty slices
  rows["t"] += many;
  EXPECT_THAT(verdict(rows), HasSubstr("has 1000002 slices, not all of which have positions"));
  rows = rows_of({4}, cut_along({4}, 0, {1, 3}));
  for (int i = 0; i < 5000; ++i) rows["t"] += std::string("\x12\x00", 2);  // empty shapes
  EXPECT_THAT(verdict(rows), HasSubstr("entry with a part of"));
}

}  // namespace slice_rules_test
}  // namespace lockstep::checkpoint
