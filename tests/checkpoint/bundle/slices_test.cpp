// Tensors that are saved in slices: read whole or in part, checked, refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/restore.h"
#include "tests/checkpoint/bundle/sliced_save.h"

namespace lockstep::checkpoint {
namespace slices_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using tests::cut_along;
using tests::cut_at;
using tests::SaveMaker;
using tests::TemporaryFolder;

struct Cut {
  std::string what;
  std::vector<int64_t> shape;
  std::vector<TensorBox> boxes;
};

/// The ways in which we and TensorFlow cut tensors of one to four dimensions.
std::vector<Cut> cuts() {
  const std::vector<int64_t> four = {3, 4, 5, 2};
  std::vector<Cut> list = {
      {"runs of a vector", {17}, cut_at({17}, {5, 6, 17})},
      {"rows", {6, 7}, cut_along({6, 7}, 0, {1, 3, 2})},
      {"columns", {6, 7}, cut_along({6, 7}, 1, {4, 3})},
      {"inside of rows", {6, 7}, cut_at({6, 7}, {3, 20, 42})},
      {"four dimensions, inside of rows", four, cut_at(four, {1, 33, 77, 120})},
      {"last of four dimensions", four, cut_along(four, 3, {1, 1})},
      {"second of four dimensions", four, cut_along(four, 1, {1, 2, 1})},
      {"the whole as a slice", {6, 7}, cut_along({6, 7}, 0, {6})},
      // no straight cut divides these
      {"pinwheel",
       {3, 3},
       {{{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}}},
  };
  list.push_back(list[3]);
  std::swap(list.back().boxes.front(), list.back().boxes.back());
  list.back().what = "out of order";
  return list;
}

at::Tensor numbers(const std::vector<int64_t>& shape, at::ScalarType type = at::kFloat) {
  return (at::arange(1, 1 + c10::multiply_integers(shape), at::kLong)).reshape(shape).to(type);
}

Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& fault) {
    return fault;
  }
  return {ExitCode::kDone, "test", "no error"};
}

TEST(Slices, AnyCutIsReadWhole) {
  for (const Cut& cut : cuts()) {
    TemporaryFolder folder;
    SaveMaker maker(2);
    maker.add_sliced("t", numbers(cut.shape), cut.boxes);
    maker.add("whole", numbers({4}));
    maker.write(folder / "m-1");
    EXPECT_THAT(verify(folder / "m-1"), IsEmpty()) << cut.what;
    BundleReader reader(folder / "m-1");
    EXPECT_TRUE(reader.read("t").equal(numbers(cut.shape))) << cut.what;
    std::vector<int64_t> reversed(cut.shape.rbegin(), cut.shape.rend());
    const at::Tensor strided = at::zeros(reversed).permute([&] {
      std::vector<int64_t> dims;
      for (size_t d = cut.shape.size(); d-- > 0;) dims.push_back(static_cast<int64_t>(d));
      return dims;
    }());
    reader.read_all({{"t", strided}});
    EXPECT_TRUE(strided.equal(numbers(cut.shape))) << cut.what;
  }
}

TEST(Slices, OnlyWhatIsHeldIsWritten) {
  for (const Cut& cut : cuts()) {
    TemporaryFolder folder;
    SaveMaker maker(2);
    const at::Tensor saved = numbers(cut.shape);
    maker.add_sliced("t", saved, cut.boxes);
    maker.add("whole", saved);
    maker.write(folder / "m-1");
    BundleReader reader(folder / "m-1");
    const int64_t n = saved.numel();
    for (const std::vector<ElementRange>& held :
         {std::vector<ElementRange>{}, {{0, n}}, {{1, 2}, {4, n - 1}}, {{n - 3, n}}, {{3, 3}}})
      for (const char* name : {"t", "whole"})
        for (const bool strided : {false, true}) {
          at::Tensor live = at::full(cut.shape, -1.0);
          if (strided) live = at::full({2 * n}, -1.0).slice(0, 0, c10::nullopt, 2).view(cut.shape);
          reader.read_all({{name, live, held}});
          at::Tensor expected = at::full({n}, -1.0);
          for (const ElementRange& range : held)
            expected.slice(0, range.begin_E, range.end_E)
                .copy_(saved.view(-1).slice(0, range.begin_E, range.end_E));
          EXPECT_TRUE(live.reshape(-1).equal(expected)) << cut.what << " " << name;
        }
  }
}

TEST(Slices, WhatIsNotHeldIsNotReadAndWhatIsPartlyHeldIsCheckedWholly) {
  TemporaryFolder folder;
  SaveMaker maker(2);
  maker.add_sliced("t", numbers({8, 4}), cut_along({8, 4}, 0, {4, 4}));
  maker.write(folder / "m-1");
  std::filesystem::remove(folder / "m-1.data-00001-of-00002");
  std::string first = tests::bytes_of(folder / "m-1.data-00000-of-00002");
  const at::Tensor live = at::zeros({8, 4});
  const std::vector<ElementRange> held = {{0, 2}};
  BundleReader(folder / "m-1").read_all({{"t", live, held}});
  EXPECT_EQ(live.sum().item<float>(), 1 + 2);
  first.back() = static_cast<char>(first.back() ^ 1);  // of element 15
  tests::put_bytes(folder / "m-1.data-00000-of-00002", first);
  EXPECT_THAT(error_of([&] {
                BundleReader(folder / "m-1").read_all({{"t", live, held}});
              }).what(),
              HasSubstr("wrong crc32c"));
}

TEST(Slices, ErrorsNameFileTensorSliceAndBytes) {
  TemporaryFolder folder;
  SaveMaker maker(2);
  maker.add_sliced("t", numbers({8, 4}), cut_along({8, 4}, 0, {4, 4}));
  maker.write(folder / "m-1");
  const std::string path = folder / "m-1.data-00001-of-00002";
  const std::string good = tests::bytes_of(path);
  std::string bad = good;
  bad[7] = static_cast<char>(bad[7] ^ 16);
  tests::put_bytes(path, bad);
  Error fault = error_of([&] { BundleReader(folder / "m-1").read("t"); });
  EXPECT_EQ(fault.code(), ExitCode::kBadData);
  for (const char* part :
       {"m-1.data-00001-of-00002: tensor 't' slice 4:8,0:4 at byte 0", "wrong crc32c",
        "64 bytes have ", "the index says ", "another checkpoint"})
    EXPECT_THAT(fault.what(), HasSubstr(part));
  EXPECT_THAT(verify(folder / "m-1"), ElementsAre(HasSubstr("slice 4:8,0:4")));
  tests::put_bytes(path, good.substr(0, 60));
  fault = error_of([&] { BundleReader(folder / "m-1").read("t"); });
  EXPECT_THAT(fault.what(), HasSubstr("slice 4:8,0:4 at byte 0: needs 64 bytes, the file ends at "
                                      "byte 60 (truncated?)"));
  EXPECT_THAT(quick_check(folder / "m-1").value_or(""), HasSubstr("truncated"));
  EXPECT_THAT(verify(folder / "m-1"), SizeIs(2));
}

/// Large enough that several threads take pieces of it, with a length that no piece divides.
TEST(Slices, LargeTensorsAreReadByManyThreads) {
  TemporaryFolder folder;
  SaveMaker maker(2);
  const at::Tensor rows = numbers({3001, 1003}), columns = numbers({1003, 2001}, at::kInt);
  maker.add_sliced("rows", rows, cut_at({3001, 1003}, {100'001, 3001 * 1003}));
  maker.add_sliced("columns", columns, cut_along({1003, 2001}, 1, {1, 1999, 1}));
  maker.add("whole", rows);
  maker.write(folder / "m-1");
  for (const int num_threads : {0, 1, 3}) {
    BundleReader reader(folder / "m-1", num_threads);
    const at::Tensor a = at::zeros_like(rows), b = at::zeros_like(columns),
                     c = at::zeros_like(rows);
    reader.read_all({{"rows", a}, {"columns", b}, {"whole", c, {{{7, 1'000'000}}}}});
    EXPECT_TRUE(a.equal(rows));
    EXPECT_TRUE(b.equal(columns));
    EXPECT_TRUE(c.view(-1).slice(0, 7, 1'000'000).equal(rows.view(-1).slice(0, 7, 1'000'000)));
    EXPECT_EQ(c.view(-1)[6].item<float>() + c.view(-1)[1'000'000].item<float>(), 0);
  }
}

}  // namespace slices_test
}  // namespace lockstep::checkpoint
