#include "checkpoint/import/import_tensorflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace import_tensorflow_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using tests::TemporaryFolder;

/// A save with the names and orders of a Keras model.
struct Foreign {
  Foreign() {
    lockstep::tests::run_ranks(1, [&](dist::Communicator& control) {
      const StateList state = {{.key = "net/dense/kernel", .tensor = dense},
                               {.key = "net/dense/bias", .tensor = bias},
                               {.key = "net/conv/kernel", .tensor = conv},
                               {.key = "opt/m", .tensor = at::ones({1})}};
      Saver({.prefix = folder.prefix()}, control).save(state, 3);
    });
  }
  std::string save() const { return folder.prefix() + "-3"; }

  TemporaryFolder folder;
  at::Tensor dense = at::arange(6, at::kFloat).reshape({2, 3});
  at::Tensor bias = at::arange(3, at::kFloat);
  at::Tensor conv = at::arange(2 * 3 * 4 * 5, at::kFloat).reshape({2, 3, 4, 5});
};

struct Ours {
  at::Tensor weight = at::zeros({3, 2}), bias = at::zeros({3}), conv = at::zeros({5, 4, 2, 3});
  StateList list() const {
    return {{.key = "model/fc/weight", .tensor = weight},
            {.key = "model/fc/bias", .tensor = bias},
            {.key = "model/conv/weight", .tensor = conv}};
  }
  bool is_untouched() const { return weight.abs().sum().item<double>() == 0; }
};

ImportOptions rules() {
  ImportOptions options{.allow_unused = {"opt/.*"}};
  options.rules = rules_for_layer("net/dense", "model/fc");
  options.rules.push_back({"net/(conv)/kernel", "model/\\1/weight", KernelOrder::kOutputsLast});
  return options;
}

std::string error_of(const Foreign& foreign, const Ours& ours, const ImportOptions& options) {
  try {
    import_tensorflow(foreign.save(), ours.list(), options);
  } catch (const Error& error) {
    EXPECT_TRUE(ours.is_untouched());
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(ImportTensorflow, NamesAreMappedAndKernelsTurned) {
  const Foreign foreign;
  const Ours ours;
  const ImportReport report = import_tensorflow(foreign.save(), ours.list(), rules());
  EXPECT_TRUE(at::equal(ours.weight, foreign.dense.t()));
  EXPECT_TRUE(at::equal(ours.bias, foreign.bias));
  for (int64_t o = 0; o < 5; ++o)
    for (int64_t i = 0; i < 4; ++i)
      EXPECT_TRUE(at::equal(ours.conv[o][i], foreign.conv.select(3, o).select(2, i)));
  EXPECT_THAT(report.loaded, ElementsAre(Pair("net/conv/kernel", "model/conv/weight"),
                                         Pair("net/dense/bias", "model/fc/bias"),
                                         Pair("net/dense/kernel", "model/fc/weight")));
  EXPECT_THAT(report.unused, ElementsAre("opt/m"));
}

TEST(ImportTensorflow, IsStrictOnBothSidesUnlessToldWhatMayLack) {
  const Foreign foreign;
  const Ours ours;
  ImportOptions options = rules();
  options.rules.pop_back();
  options.allow_unused.clear();
  EXPECT_THAT(error_of(foreign, ours, options),
              AllOf(HasSubstr("no value for 'model/conv/weight'"),
                    HasSubstr("not used: 'net/conv/kernel', 'opt/m'")));
  options.allow_missing = {"model/conv/.*"};
  options.allow_unused = {"opt/.*", "net/conv/kernel"};
  EXPECT_THAT(import_tensorflow(foreign.save(), ours.list(), options).missing,
              ElementsAre("model/conv/weight"));
}

TEST(ImportTensorflow, SaysWhatDoesNotFit) {
  const Foreign foreign;
  const Ours ours;
  ImportOptions options = rules();
  options.rules[0].order = KernelOrder::kAsSaved;
  EXPECT_THAT(
      error_of(foreign, ours, options),
      HasSubstr("'net/dense/kernel' is float32 [2, 3], 'model/fc/weight' is float32 [3, 2]"));
  options = rules();
  options.rules.push_back({"opt/m", "model/fc/bias"});
  EXPECT_THAT(error_of(foreign, ours, options), HasSubstr("both renamed to 'model/fc/bias'"));
  options.rules = {{"net/(", "x"}};
  EXPECT_THAT(error_of(foreign, ours, options), HasSubstr("is not a pattern"));
  options.rules = {{"net/.*", "\\1"}};
  EXPECT_THAT(error_of(foreign, ours, options), HasSubstr("cannot follow"));
}

TEST(ImportTensorflow, APrefixIsARuleAndNoRuleMeansOurNames) {
  const Foreign foreign;
  at::Tensor bias = at::zeros({3});
  const ImportOptions by_prefix{.rules = {rule_for_prefix("net/dense", "model/fc")},
                                .allow_unused = {".*"}};
  import_tensorflow(foreign.save(), {{.key = "model/fc/bias", .tensor = bias}}, by_prefix);
  EXPECT_TRUE(at::equal(bias, foreign.bias));
  bias.zero_();
  import_tensorflow(foreign.save(), {{.key = "net/dense/bias", .tensor = bias}},
                    {.allow_unused = {".*"}});
  EXPECT_TRUE(at::equal(bias, foreign.bias));
}

}  // namespace import_tensorflow_test
}  // namespace lockstep::checkpoint
