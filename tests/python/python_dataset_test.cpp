#include "python/python_dataset.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "python_files.h"

namespace lockstep::python {
namespace python_dataset_test {

using data::TargetKind;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using tests::fault_of;
using tests::python_args;

PythonDatasetOptions points(const std::string& args = "{}") {
  return {.args = python_args("sets.py", "Points", args)};
}

data::Samples read(const PythonDataset& set, std::vector<int64_t> indices, int64_t epoch = 0) {
  return set.get(indices, epoch);
}

TEST(PythonDataset, ReadsByIndex) {
  const PythonDataset set(points(), 17, "data.train");
  EXPECT_EQ(set.num_samples(), 200);
  EXPECT_EQ(set.spec(), (data::SampleSpec{.input_shape = {4}, .num_classes = 3}));
  const data::Samples three = read(set, {5, 0, 199});
  EXPECT_EQ(three.inputs_BX.sizes(), (std::vector<int64_t>{3, 4}));
  EXPECT_TRUE(at::equal(three.inputs_BX[1], read(set, {0}).inputs_BX[0]));
  EXPECT_EQ(three.targets_BY.scalar_type(), at::kLong);
  EXPECT_EQ(read(set, {}).inputs_BX.sizes(), (std::vector<int64_t>{0, 4}));
}

TEST(PythonDataset, DrawsBySeedEpochAndIndexAlone) {
  const PythonDataset set(points(R"({"noise": 0.1})"), 17, "data.train");
  const PythonDataset same(points(R"({"noise": 0.1})"), 17, "data.train");
  const PythonDataset other(points(R"({"noise": 0.1})"), 18, "data.train");
  const at::Tensor once = read(set, {3, 4}).inputs_BX;
  EXPECT_TRUE(at::equal(read(same, {4, 3}).inputs_BX.flip(0), once));
  EXPECT_FALSE(at::equal(read(set, {3, 4}, 1).inputs_BX, once));
  EXPECT_FALSE(at::equal(read(other, {3, 4}).inputs_BX, once));
}

TEST(PythonDataset, TakesTheKindOfTargetsFromTheFirst) {
  PythonDatasetOptions options{.args = python_args("sets.py", "Line")};
  const PythonDataset values(options, 17, "data.train");
  EXPECT_EQ(values.spec().target_kind, TargetKind::kValues);
  EXPECT_EQ(values.spec().num_classes, 3);
  options.targets = "soft";
  EXPECT_EQ(PythonDataset(options, 17, "data.train").spec().target_kind, TargetKind::kSoft);
}

TEST(PythonDataset, ItsDigestTellsArgumentsAndContentApart) {
  const auto digest = [](const std::string& args) {
    return PythonDataset(points(args), 17, "data.train").digest();
  };
  EXPECT_EQ(digest("{}"), digest("{}"));
  EXPECT_NE(digest("{}"), digest(R"({"samples": 199})"));
  const std::string ends_early = R"({"fault": "length"})";  // the last sample cannot be read
  EXPECT_EQ(digest(ends_early), digest(ends_early));
}

TEST(PythonDataset, TellsOfBadSamplesByNumber) {
  const auto all_read = [](const std::string& fault) {
    return fault_of([&] {
      const PythonDataset set(points(R"({"fault": ")" + fault + R"("})"), 17, "data.train");
      std::vector<int64_t> all(static_cast<size_t>(set.num_samples()));
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
      (void)set.get(all, 0);
    });
  };
  EXPECT_EQ(all_read(""), "nothing");
  EXPECT_THAT(all_read("raises"),
              AllOf(StartsWith("65 "), HasSubstr("sample 77 of Points, whose length is 200: "
                                                 "KeyError: 'no such point'")));
  EXPECT_THAT(all_read("ragged"),
              AllOf(StartsWith("65 "), HasSubstr("sets.py: sample 77 of Points has inputs [3]")));
  EXPECT_THAT(all_read("class"),
              AllOf(StartsWith("65 "), HasSubstr("the target of sample 77 of Points holds 9, the "
                                                 "classes are 0 to 2")));
  EXPECT_THAT(all_read("length"),
              AllOf(StartsWith("65 "), HasSubstr("sample 200 of Points, whose length is 207: "
                                                 "IndexError")));
}

}  // namespace python_dataset_test
}  // namespace lockstep::python
