#include "python/python_types.h"

#include <array>
#include <numeric>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "python_files.h"
#include "tests/support/temporary_folder.h"

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
  const PythonDataset set(points(), {.seed = 17}, "data.train");
  EXPECT_EQ(set.num_samples(), 200);
  EXPECT_EQ(set.spec(), (data::SampleSpec{.input_shape = {4}, .num_classes = 3}));
  const data::Samples three = read(set, {5, 0, 199});
  EXPECT_EQ(three.inputs_BX.sizes(), (std::vector<int64_t>{3, 4}));
  EXPECT_TRUE(at::equal(three.inputs_BX[1], read(set, {0}).inputs_BX[0]));
  EXPECT_EQ(three.targets_BY.scalar_type(), at::kLong);
  EXPECT_EQ(read(set, {}).inputs_BX.sizes(), (std::vector<int64_t>{0, 4}));
}

TEST(PythonDataset, DrawsBySeedEpochAndIndexAlone) {
  const PythonDataset set(points(R"({"noise": 0.1})"), {.seed = 17}, "data.train");
  const PythonDataset same(points(R"({"noise": 0.1})"), {.seed = 17}, "data.train");
  const PythonDataset other(points(R"({"noise": 0.1})"), {.seed = 18}, "data.train");
  const at::Tensor once = read(set, {3, 4}).inputs_BX;
  EXPECT_TRUE(at::equal(read(same, {4, 3}).inputs_BX.flip(0), once));
  EXPECT_FALSE(at::equal(read(set, {3, 4}, 1).inputs_BX, once));
  EXPECT_FALSE(at::equal(read(other, {3, 4}).inputs_BX, once));
}

TEST(PythonDataset, TakesTheKindOfTargetsFromTheFirst) {
  PythonDatasetOptions options{.args = python_args("sets.py", "Line")};
  const PythonDataset values(options, {.seed = 17}, "data.train");
  EXPECT_EQ(values.spec().target_kind, TargetKind::kValues);
  EXPECT_EQ(values.spec().num_classes, 3);
  options.targets = "soft";
  EXPECT_EQ(PythonDataset(options, {.seed = 17}, "data.train").spec().target_kind,
            TargetKind::kSoft);
}

TEST(PythonDataset, ItsDigestTellsArgumentsAndContentApart) {
  const auto digest = [](const std::string& args) {
    return PythonDataset(points(args), {.seed = 17}, "data.train").digest();
  };
  EXPECT_EQ(digest("{}"), digest("{}"));
  EXPECT_NE(digest("{}"), digest(R"({"samples": 199})"));
  const std::string ends_early = R"({"fault": "length"})";  // the last sample cannot be read
  EXPECT_EQ(digest(ends_early), digest(ends_early));
}

/// A data set of `Odd` in which one thing is unusual.
PythonDatasetOptions odd(const std::string& kind, const std::string& targets = "auto") {
  return {.args = python_args("sets.py", "Odd", R"({"kind": ")" + kind + R"("})"),
          .targets = targets};
}

/// Text of the error from opening and reading all of it.
std::string fault_of_all(const PythonDatasetOptions& options,
                         const data::DatasetInputs& inputs = {.seed = 17}) {
  return fault_of([&] {
    const PythonDataset set(options, inputs, "data.train");
    std::vector<int64_t> all(static_cast<size_t>(set.num_samples()));
    std::iota(all.begin(), all.end(), 0);
    (void)set.get(all, 0);
  });
}

TEST(PythonDataset, RefusesASampleThatDiffersWhenItIsReadTwice) {
  for (const char* kind : {"unseeded", "seeded_once"})
    EXPECT_THAT(fault_of_all(odd(kind)),
                AllOf(StartsWith("65 "), HasSubstr("sets.py: sample 0 of Odd differs when it is "
                                                   "read twice: it draws from its own generator")))
        << kind;
  EXPECT_EQ(fault_of_all(odd("seeded_by_sample")), "nothing");
}

TEST(PythonDataset, NamesTheTargetThatIsOutOfRangeAndLetsIgnoredOnesPass) {
  EXPECT_THAT(fault_of_all(odd("minus_one")),
              AllOf(StartsWith("65 "), HasSubstr("sets.py: the target of sample 3 of Odd holds -1, "
                                                 "the classes are 0 to 2")));
  EXPECT_EQ(fault_of_all(odd("minus_100")), "nothing");
  EXPECT_EQ(fault_of_all(odd("minus_one"), {.seed = 17, .own_loss = true}), "nothing");
}

TEST(PythonDataset, BeginsWithTheFirstSoundSampleWhereDamagedOnesAreSkipped) {
  EXPECT_THAT(fault_of_all(odd("first_damaged")),
              AllOf(StartsWith("65 "), HasSubstr("sample 0 of Odd, whose length is 8: ValueError: "
                                                 "damaged")));
  const PythonDataset set(odd("first_damaged"), {.seed = 17, .skips_damaged = true}, "data.train");
  EXPECT_EQ(set.spec(), (data::SampleSpec{.input_shape = {4}, .num_classes = 3}));
  EXPECT_EQ(read(set, {1, 2}).targets_BY.size(0), 2);
}

TEST(PythonDataset, SaysWhatIsWrongWithTargetsAndCounts) {
  const std::vector<std::array<std::string, 3>> cases{
      {"tensor_of_one", "auto",
       "the target of sample 0 of Odd has shape [1]: a class is one whole"},
      {"tensor_of_one", "class", "the target of sample 0 of Odd has shape [1]: a class is one"},
      {"", "tokens", "the target of sample 0 of Odd is one number: `targets: tokens` needs"},
      {"", "soft", "the target of sample 0 of Odd is one number: `targets: soft` needs"},
      {"text", "auto", "the target of sample 0 of Odd is 'cat' (str): a class is one whole number"},
      {"three_parts", "auto", "part 2 of sample 0 of Odd is str and no tensor"},
      {"length", "auto", "sets.py: Odd.__len__ must return a whole number"},
      {"count_of_float", "auto", "num_classes of Odd is 3.0 (float); it must be a whole number"}};
  for (const auto& [kind, targets, said] : cases)
    EXPECT_THAT(fault_of_all(odd(kind, targets)), AllOf(StartsWith("65 "), HasSubstr(said)))
        << kind;
  EXPECT_EQ(fault_of_all(odd("count_of_tensor")), "nothing");
  EXPECT_EQ(fault_of_all(odd("tensor_of_one", "tokens")), "nothing");
}

PythonDatasetOptions texts(const std::string& args, const std::string& name = "Texts") {
  return {.args = python_args("hf_sets.py", name, args)};
}

TEST(PythonDataset, GivesTensorsByKeyword) {
  const PythonDataset set(texts(R"({"kind": "dict"})"), {.seed = 17, .own_loss = true},
                          "data.train");
  const data::Samples two = read(set, {1, 0});
  EXPECT_THAT(two.names, testing::ElementsAre("input_ids", "labels", "attention_mask"));
  EXPECT_EQ(two.inputs_BX.sizes(), (std::vector<int64_t>{2, 12}));
  EXPECT_TRUE(at::equal(two.inputs_BX, two.targets_BY));
  ASSERT_EQ(two.more.size(), 1U);
  EXPECT_TRUE(at::equal(two.more[0], at::ones({2, 12}, at::kLong)));
  EXPECT_FALSE(set.spec().varies);
  EXPECT_EQ(set.spec().example.tensors.size(), 3U);
  EXPECT_EQ(read(set, {}).more.at(0).sizes(), (std::vector<int64_t>{0, 12}));
}

TEST(PythonDataset, PadsByItsCollateFunction) {
  const PythonDataset set(texts("{}"), {.seed = 17, .own_loss = true}, "data.train");
  EXPECT_TRUE(set.spec().varies);
  EXPECT_EQ(read(set, {0, 1}).inputs_BX.sizes(), (std::vector<int64_t>{2, 10}));  // 3 and 10 tokens
  EXPECT_EQ(read(set, {0}).inputs_BX.sizes(), (std::vector<int64_t>{1, 3}));
  EXPECT_THAT(fault_of([] {
                const PythonDataset skips(
                    texts("{}"), {.seed = 17, .skips_damaged = true, .own_loss = true}, "train");
              }),
              AllOf(StartsWith("78 "), HasSubstr("with the collate_fn of Texts")));
}

TEST(PythonDataset, ReadsAnIterableByIndex) {
  PythonDatasetOptions options = texts(R"({"has_skip": true})", "Stream");
  options.is_iterable = true;
  const PythonDataset stream(options, {.seed = 17, .own_loss = true}, "data.train");
  const PythonDataset same(texts("{}"), {.seed = 17, .own_loss = true}, "data.train");
  EXPECT_TRUE(stream.is_sequential());
  for (const std::vector<int64_t>& indices :
       {std::vector<int64_t>{0, 1}, std::vector<int64_t>{4, 5}, std::vector<int64_t>{2, 3}})
    for (const int64_t epoch : {0, 1})
      EXPECT_TRUE(
          at::equal(read(stream, indices, epoch).inputs_BX, read(same, indices, epoch).inputs_BX));
}

TEST(PythonDataset, AFileThatFailedToLoadIsLoadedAnewWhenItIsCorrected) {
  const tests::TemporaryFolder folder;
  const std::string file = folder.path() / "net.py", helper = folder.path() / "own_helper.py";
  const auto fault = [&](const std::string& text, const std::string& helper_text) {
    files::write_atomically(file, text);
    files::write_atomically(helper, helper_text);
    PythonDatasetOptions options = odd("");
    options.args.path = file;
    return fault_of_all(options);
  };
  const std::string good =
      "class Odd:\n    num_classes = 2\n    def __init__(self, kind): pass\n"
      "    def __len__(self): return own_helper.LENGTH\n"
      "    def __getitem__(self, index): return [0.0], index % 2\n";
  EXPECT_THAT(fault("import own_helper\nimport not_yet_installed\n" + good, ""),
              HasSubstr("No module named 'not_yet_installed'"));
  EXPECT_EQ(fault("import own_helper\n" + good, "LENGTH = 3\n"), "nothing");
}

TEST(PythonDataset, TellsOfBadSamplesByNumber) {
  const auto all_read = [](const std::string& fault) {
    return fault_of([&] {
      const PythonDataset set(points(R"({"fault": ")" + fault + R"("})"), {.seed = 17},
                              "data.train");
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
              AllOf(StartsWith("65 "), HasSubstr("sets.py: input of sample 77 of Points is [3]")));
  EXPECT_THAT(all_read("class"),
              AllOf(StartsWith("65 "), HasSubstr("the target of sample 77 of Points holds 9, the "
                                                 "classes are 0 to 2")));
  EXPECT_THAT(all_read("length"),
              AllOf(StartsWith("65 "), HasSubstr("sample 200 of Points, whose length is 207: "
                                                 "IndexError")));
}

}  // namespace python_dataset_test
}  // namespace lockstep::python
