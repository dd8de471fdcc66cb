#include "checkpoint/tools/inspect.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/tools/tensor_values.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace diff_test {

using ::testing::HasSubstr;
using tests::TemporaryFolder;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor numbers(const std::vector<double>& values, at::ScalarType type) {
  return at::tensor(values, at::kDouble).to(type);
}

void save(const TemporaryFolder& folder, const StateList& state, int64_t number) {
  lockstep::tests::run_ranks(1, [&](dist::Communicator& control) {
    EXPECT_TRUE(Saver({.prefix = folder.prefix(), .keep_checkpoint_max = -1}, control)
                    .save(state, number)
                    .ok);
  });
}

nlohmann::json rows_of(const Answer& answer) {
  const auto all = nlohmann::json::parse(answer.text);
  nlohmann::json rows;
  for (const auto& row : all["tensors"]) rows[row["key"].get<std::string>()] = row;
  return rows;
}

TEST(Compare, CountsElementsOfOtherBitsAndTheLargestDistance) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kByte, at::kShort,
        at::kInt, at::kLong, at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexFloat,
        at::kComplexDouble}) {
    const TensorDifference d =
        compare(numbers({0, 1, 2, 0, 7}, type), numbers({0, 4, 2, 1, 7}, type));
    EXPECT_EQ(d.num_elements, 5) << type;
    EXPECT_EQ(d.num_different, 2) << type;
    EXPECT_EQ(d.max_difference, 3) << type;
    EXPECT_EQ(d.num_zeros_a, 2) << type;
    EXPECT_EQ(d.num_zeros_b, 1) << type;
  }
  const TensorDifference flags =
      compare(numbers({0, 1, 1}, at::kBool), numbers({1, 1, 0}, at::kBool));
  EXPECT_EQ(flags.num_different, 2);
  EXPECT_EQ(flags.max_difference, 1);
}

TEST(Compare, GoesByBits) {
  const TensorDifference zeros =
      compare(numbers({-0.0, 1}, at::kFloat), numbers({0, 1}, at::kFloat));
  EXPECT_EQ(zeros.num_different, 1);
  EXPECT_EQ(zeros.max_difference, 0);
  EXPECT_EQ(zeros.num_zeros_a, 1);
  EXPECT_TRUE(
      compare(numbers({kNaN, kInfinity}, at::kFloat), numbers({kNaN, kInfinity}, at::kFloat))
          .is_same());
  const TensorDifference nan =
      compare(numbers({1, kNaN, 1}, at::kDouble), numbers({5, 1, 9}, at::kDouble));
  EXPECT_EQ(nan.num_different, 3);
  EXPECT_TRUE(std::isnan(nan.max_difference));
  EXPECT_EQ(
      compare(numbers({kInfinity}, at::kHalf), numbers({-kInfinity}, at::kHalf)).max_difference,
      kInfinity);
}

TEST(Compare, DistancesOfWholeNumbersDoNotOverflow) {
  const auto limits = std::numeric_limits<int64_t>();
  EXPECT_EQ(compare(at::full({1}, limits.min(), at::kLong), at::full({1}, limits.max(), at::kLong))
                .max_difference,
            std::ldexp(1.0, 64));
  EXPECT_EQ(compare(numbers({-128}, at::kChar), numbers({127}, at::kChar)).max_difference, 255);
}

TEST(Compare, NothingIsTheSameAsNothing) {
  const TensorDifference d = compare(at::zeros({0, 3}), at::zeros({0, 3}));
  EXPECT_TRUE(d.is_same());
  EXPECT_EQ(d.num_elements, 0);
}

TEST(Diff, SavesOfOtherWorldSizesAreEqual) {
  TemporaryFolder one, three;
  tests::save_small({.prefix = one.prefix()}, 5, 1);
  tests::save_small({.prefix = three.prefix()}, 5, 3);
  const Answer answer = diff_saves(one.path(), three.prefix() + "-5", {});
  EXPECT_TRUE(answer.ok) << answer.text;
  EXPECT_THAT(answer.text, HasSubstr("7 tensors: 7 same\n"));
}

TEST(Diff, TellsWhatDiffersAndHow) {
  TemporaryFolder folder;
  std::string red = "red", blue = "blue";
  save(folder,
       {{"model/w", numbers({0, 1, 2, 3}, at::kFloat)},
        {"model/s", at::ones({2})},
        {"model/old", at::ones({2, 3})},
        {"model/f", at::ones({2, 3})},
        {"_lockstep/note", {}, &red}},
       1);
  save(folder,
       {{"model/w", numbers({0, 1, 2.5, 0}, at::kFloat)},
        {"model/s", at::ones({2})},
        {"model/new", at::ones({1})},
        {"model/f", at::ones({2, 3}, at::kDouble)},
        {"_lockstep/note", {}, &blue}},
       2);
  const Answer answer = diff_saves(folder.prefix() + "-1", folder.path(), {.json = true});
  EXPECT_FALSE(answer.ok);
  const nlohmann::json rows = rows_of(answer);
  EXPECT_EQ(rows.size(), 8U);  // and counter, graph
  const auto& w = rows["model/w"];
  EXPECT_EQ(w["verdict"], "differs");
  EXPECT_EQ(w["num_elements"], 4);
  EXPECT_EQ(w["num_different"], 2);
  EXPECT_EQ(w["max_difference"], 3);
  EXPECT_EQ(w["sparsity_a"], 0.25);
  EXPECT_EQ(w["sparsity_b"], 0.5);
  EXPECT_EQ(rows["model/s"]["verdict"], "same");
  EXPECT_EQ(rows["model/old"]["verdict"], "only_in_a");
  EXPECT_EQ(rows["model/old"]["form_a"], "float32 [2, 3]");
  EXPECT_TRUE(rows["model/old"]["form_b"].is_null());
  EXPECT_EQ(rows["model/new"]["verdict"], "only_in_b");
  EXPECT_EQ(rows["model/f"]["verdict"], "other_form");
  EXPECT_EQ(rows["model/f"]["form_b"], "float64 [2, 3]");
  EXPECT_TRUE(rows["model/f"]["max_difference"].is_null());
  EXPECT_EQ(rows["_lockstep/note"]["verdict"], "differs");
  EXPECT_THAT(diff_saves(folder.prefix() + "-1", folder.path(), {}).text,
              HasSubstr("1 only in A, 1 only in B, 1 other form, 1 same"));
}

TEST(Diff, MayLookAtAPartAlone) {
  TemporaryFolder folder;
  save(folder, {{"model/w", at::ones({2})}, {"modelled", at::ones({2})}}, 1);
  save(folder, {{"model/w", at::ones({2})}, {"modelled", at::zeros({2})}}, 2);
  const std::string a = folder.prefix() + "-1", b = folder.prefix() + "-2";
  EXPECT_FALSE(diff_saves(a, b, {}).ok);
  EXPECT_TRUE(diff_saves(a, b, {.under = "model"}).ok);
  EXPECT_TRUE(diff_saves(a, b, {.under = "model/w"}).ok);
  EXPECT_FALSE(diff_saves(a, b, {.under = "modelled"}).ok);
  EXPECT_THROW(diff_saves(a, b, {.under = "optimizer"}), Error);
}

TEST(Diff, ASparseTensorEqualsItsDenseForm) {
  TemporaryFolder folder;
  std::string form = "[4] _lockstep/masks/w";
  const at::Tensor bits = at::tensor({0x0a}, at::kByte);
  save(folder,
       {{"_lockstep/masks/w", bits},
        {"_lockstep/sparse/model/w/values", numbers({5, 6}, at::kFloat)},
        {"_lockstep/sparse/model/w/form", {}, &form}},
       1);
  save(folder, {{"_lockstep/masks/w", bits}, {"model/w", numbers({0, 5, 0, 6}, at::kFloat)}}, 2);
  const Answer answer =
      diff_saves(folder.prefix() + "-1", folder.prefix() + "-2", {.under = "model"});
  EXPECT_TRUE(answer.ok) << answer.text;
}

TEST(Diff, NotANumberStandsAsText) {
  TemporaryFolder folder;
  save(folder, {{"model/w", numbers({kNaN}, at::kFloat)}}, 1);
  save(folder, {{"model/w", numbers({1}, at::kFloat)}}, 2);
  save(folder, {{"model/w", numbers({kInfinity}, at::kFloat)}}, 3);
  const auto largest = [&](const char* a, const char* b) {
    return rows_of(diff_saves(folder.prefix() + a, folder.prefix() + b,
                              {.json = true}))["model/w"]["max_difference"];
  };
  EXPECT_EQ(largest("-1", "-2"), "nan");
  EXPECT_EQ(largest("-2", "-3"), "inf");
}

}  // namespace diff_test
}  // namespace lockstep::checkpoint
