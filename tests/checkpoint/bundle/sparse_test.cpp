// Tensors of which a save holds only the values that a mask keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "checkpoint/format/object_graph.h"
#include "checkpoint/format/saved_values.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/saver.h"
#include "dist/communicator.h"
#include "tests/checkpoint/bundle/sliced_save.h"

namespace lockstep::checkpoint {
namespace sparse_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tests::cut_at;
using tests::SaveMaker;
using tests::TemporaryFolder;

constexpr int64_t kRows = 13, kColumns = 11, kNum = kRows * kColumns;  // no multiple of 8

/// A pruned weight with its mask.
struct Pruned {
  explicit Pruned(at::ScalarType type = at::kFloat)
      : bits(at::zeros({num_mask_bytes(kNum)}, at::kByte)),
        dense((at::arange(1, kNum + 1)).reshape({kRows, kColumns}).to(type)) {
    auto* byte = bits.mutable_data_ptr<uint8_t>();
    for (int64_t i = 0; i < kNum; ++i)
      if (i % 3 == 0 || i > 120) byte[i / 8] = static_cast<uint8_t>(byte[i / 8] | 1U << (i % 8));
    for (int64_t i = 0; i < kNum; ++i)
      if (!is_kept(byte, i)) dense.view(-1)[i] = 0;
    values = dense.view(-1).masked_select(dense.view(-1) != 0);
  }
  at::Tensor bits, dense, values;
};

std::string text_of_form() { return "[13, 11] _lockstep/masks/w"; }

/// A save of one such weight under key model/w, values in two slices.
SaveMaker maker_of(const Pruned& pruned, const std::string& form = text_of_form()) {
  SaveMaker maker(2);
  const int64_t num_values = pruned.values.numel();
  if (pruned.values.scalar_type() == at::kFloat)
    maker.add_sliced("_lockstep/sparse/model/w/values", pruned.values,
                     cut_at({num_values}, {num_values / 3, num_values}));
  else
    maker.add("_lockstep/sparse/model/w/values", pruned.values);
  maker.add_text("_lockstep/sparse/model/w/form", form);
  maker.add("_lockstep/masks/w", pruned.bits, 1);
  return maker;
}

Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& fault) {
    return fault;
  }
  return {ExitCode::kDone, "test", "no error"};
}

TEST(Sparse, FormsAreTextsThatReadBack) {
  EXPECT_EQ(text_of(SparseForm{{64, 128}, "m/x"}), "[64, 128] m/x");
  for (const char* good : {"[64, 128] m", "[] m", "[0] m", "[3, 1, 2] a b] c"}) {
    const auto form = parse_sparse_form(good);
    ASSERT_TRUE(form) << good;
    EXPECT_EQ(text_of(*form), good);
  }
  for (const char* bad : {"", "[", "[]", "[] ", "[1,2] m", "[1, ] m", "[ 1] m", "[-1] m", "[1, 2 m",
                          "1] m", "[01] m", "[1152921504606846976] m", "[4294967296, 4294967296] m",
                          "[99999999999999999999] m", "[+1] m", "[1; 2] m"})
    EXPECT_FALSE(parse_sparse_form(bad)) << bad;
}

TEST(Sparse, RangesAreUnpackedAtAnyBorder) {
  const Pruned pruned;
  const auto* bits = pruned.bits.const_data_ptr<uint8_t>();
  for (int64_t begin = 0; begin <= kNum; begin += 5)
    for (int64_t end = begin; end <= kNum; end += 3) {
      at::Tensor live = at::full({kNum}, -1.0);
      const auto* packed = pruned.values.const_data_ptr<float>() + kept_before(bits, begin);
      unpack_range(reinterpret_cast<const char*>(packed), bits, {begin, end}, 4,
                   static_cast<char*>(live.mutable_data_ptr()));
      at::Tensor expected = at::full({kNum}, -1.0);
      expected.slice(0, begin, end).copy_(pruned.dense.view(-1).slice(0, begin, end));
      ASSERT_TRUE(live.equal(expected)) << begin << " to " << end;
    }
}

TEST(Sparse, RestoredIntoPlaceForEveryPrunableType) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    TemporaryFolder folder;
    const Pruned pruned(type);
    maker_of(pruned).write(folder / "m-1");
    EXPECT_THAT(verify(folder / "m-1"), IsEmpty());
    for (const bool strided : {false, true}) {
      at::Tensor live = at::full({kRows, kColumns}, 7, type);
      if (strided) live = at::full({kColumns, kRows}, 7, type).t();
      const at::Tensor mask = at::zeros_like(pruned.bits);
      const RestoreReport report =
          restore(folder / "m-1", {{"model/w", live}, {"_lockstep/masks/w", mask}});
      EXPECT_THAT(report.unused, IsEmpty());
      EXPECT_TRUE(live.equal(pruned.dense)) << type;
      EXPECT_TRUE(mask.equal(pruned.bits));
    }
  }
}

TEST(Sparse, AValueThatItsMaskPrunesIsNotLost) {
  dist::SelfCommunicator alone;
  for (const bool keeps_some : {true, false}) {
    TemporaryFolder folder;
    Pruned pruned;
    if (!keeps_some) (void)(pruned.bits.zero_(), pruned.dense.zero_());
    const StateList state{{.key = "model/w",
                           .tensor = pruned.dense,
                           .kept_bits = pruned.bits,
                           .kept_key = "_lockstep/masks/w"},
                          {.key = "_lockstep/masks/w", .tensor = pruned.bits}};
    Saver saver({.prefix = folder.prefix(), .sparse = true}, alone);
    EXPECT_TRUE(saver.save(state, 1).ok);
    pruned.dense.view(-1)[1] = -0.0;
    const Error fault = error_of([&] { (void)saver.save(state, 2); });
    EXPECT_EQ(fault.code(), ExitCode::kBug) << keeps_some;
    EXPECT_THAT(fault.what(), HasSubstr("'_lockstep/sparse/model/w/values'"));
  }
}

TEST(Sparse, OnlyWhatIsHeldIsWrittenAndRead) {
  TemporaryFolder folder;
  const Pruned pruned;
  maker_of(pruned).write(folder / "m-1");
  const at::Tensor live = at::full({kRows, kColumns}, -1.0);
  StateEntry entry{"model/w", live};
  entry.held = {{3, 9}, {50, 51}};
  restore(folder / "m-1", {entry});
  at::Tensor expected = at::full({kNum}, -1.0);
  for (const ElementRange& range : *entry.held)
    expected.slice(0, range.begin_E, range.end_E)
        .copy_(pruned.dense.view(-1).slice(0, range.begin_E, range.end_E));
  EXPECT_TRUE(live.view(-1).equal(expected));
  EXPECT_THAT(restore(folder / "m-1", {}).unused, ElementsAre("_lockstep/masks/w", "model/w"));
}

TEST(Restore, DividedTensorsAreReadAsHeldAndFilledAsHeld) {
  TemporaryFolder folder;
  SaveMaker maker(2);
  const at::Tensor saved = at::arange(40, at::kFloat).reshape({8, 5});
  maker.add_sliced("_lockstep/m", saved, cut_at({8, 5}, {11, 23, 40}));
  maker.write(folder / "m-1");
  for (const bool strided : {false, true}) {
    at::Tensor live = at::full({8, 5}, -1.0), added = at::full({8, 5}, -1.0);
    if (strided) live = at::full({5, 8}, -1.0).t(), added = at::full({5, 8}, -1.0).t();
    StateEntry found{"_lockstep/m", live}, missing{"_lockstep/new", added, nullptr, 3.0};
    found.held = missing.held = {{13, 15}, {30, 40}};
    restore(folder / "m-1", {found, missing});
    for (int64_t i = 0; i < 40; ++i) {
      const bool held = (i >= 13 && i < 15) || i >= 30;
      EXPECT_EQ(live.reshape(-1)[i].item<float>(), held ? static_cast<float>(i) : -1);
      EXPECT_EQ(added.reshape(-1)[i].item<float>(), held ? 3 : -1);
    }
  }
}

TEST(Sparse, PartsThatDoNotFitAreRefused) {
  const Pruned pruned;
  struct Lie {
    std::string what, expected;
    std::function<SaveMaker()> make;
  };
  const std::string values = "_lockstep/sparse/model/w/values", mask = "_lockstep/masks/w";
  const auto with = [&](const std::string& name, const at::Tensor& tensor) {
    SaveMaker maker = maker_of(pruned);
    maker.add(name, tensor);
    return maker;
  };
  const auto without = [&](const std::string& name) {
    SaveMaker maker = maker_of(pruned);
    maker.index.entries.erase(name);
    return maker;
  };
  at::Tensor one_more = pruned.bits.clone(), behind_end = pruned.bits.clone();
  one_more[0] = one_more[0].item<int64_t>() | 2;
  behind_end[-1] = behind_end[-1].item<int64_t>() | 128;
  const std::vector<Lie> lies = {
      {"another number", "keeps", [&] { return with(mask, one_more); }},
      {"bits behind the end", "bits after the last", [&] { return with(mask, behind_end); }},
      {"short mask", "one bit for each", [&] { return with(mask, pruned.bits.slice(0, 0, 17)); }},
      {"mask of another type", "one bit for each",
       [&] { return with(mask, pruned.bits.to(at::kChar)); }},
      {"no mask", "does not contain", [&] { return without(mask); }},
      {"no values", "does not contain", [&] { return without(values); }},
      {"values in two dimensions", "does not match a mask of",
       [&] {
         return with(values, pruned.values.view({1, -1}));
       }},
      {"values of a width that none has", "does not match a mask of",
       [&] { return with(values, pruned.values.to(at::kChar)); }},
      {"form of another shape", "one bit for each",
       [&] { return maker_of(pruned, "[13, 21] _lockstep/masks/w"); }},
      {"no form", "does not have the form",
       [&] { return maker_of(pruned, "13 11 _lockstep/masks/w"); }},
      {"twice", "saved twice", [&] { return with(index_name("model/w"), pruned.dense); }},
  };
  for (const Lie& lie : lies) {
    TemporaryFolder folder;
    lie.make().write(folder / "m-1");
    const at::Tensor live = at::zeros({kRows, kColumns});
    const Error fault = error_of([&] { restore(folder / "m-1", {{"model/w", live}}); });
    EXPECT_EQ(fault.code(), ExitCode::kBadData) << lie.what;
    EXPECT_THAT(fault.what(), HasSubstr(lie.expected)) << lie.what;
    EXPECT_THAT(verify(folder / "m-1"), Contains(HasSubstr(lie.expected))) << lie.what;
  }
}

TEST(Sparse, AnotherShapeThanTheLiveOneIsRefused) {
  TemporaryFolder folder;
  maker_of(Pruned()).write(folder / "m-1");
  const at::Tensor live = at::zeros({kColumns, kRows});
  const Error fault = error_of([&] { restore(folder / "m-1", {{"model/w", live}}); });
  EXPECT_THAT(fault.what(), HasSubstr("model/w"));
  EXPECT_THAT(fault.what(), HasSubstr("is float32 [13, 11], but this run needs float32 [11, 13]"));
}

/// Strided tensors are copied row by row, like a tensor on a device.
TEST(Sparse, ATensorOfAnyStridesIsStoredSparse) {
  const TemporaryFolder folder;
  const Pruned pruned;
  const at::Tensor strided = pruned.dense.t().contiguous().t();
  ASSERT_FALSE(strided.is_contiguous());
  lockstep::tests::run_ranks(2, [&](dist::Communicator& control) {
    const StateList state = {{.key = "_lockstep/masks/w", .tensor = pruned.bits},
                             {.key = "model/w",
                              .tensor = strided,
                              .kept_bits = pruned.bits,
                              .kept_key = "_lockstep/masks/w"}};
    ASSERT_TRUE(Saver({.prefix = folder.prefix(), .sparse = true, .min_cut_bytes = 0}, control)
                    .save(state, 1)
                    .ok);
  });
  BundleReader reader(folder.prefix() + "-1");
  DenseView view(&reader);
  EXPECT_TRUE(view.is_sparse(index_name("model/w")));
  EXPECT_TRUE(at::equal(view.read(index_name("model/w")), pruned.dense));
}

}  // namespace sparse_test
}  // namespace lockstep::checkpoint
