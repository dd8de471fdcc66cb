#include "checkpoint/import/load_weights.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/import/safetensors.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace load_weights_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using tests::TemporaryFolder;

/// Options as the run file's text gives them; `faults` of reading them.
WarmStartOptions options_of(const std::string& text, std::string* faults_text = nullptr) {
  Diagnostics faults;
  YamlDocument document =
      YamlDocument::parse("run.yaml", "{warm_start_ckpt: w, " + text + "}", &faults);
  ConfigReader in(document.root(), "checkpoint", document, &faults);
  WarmStartOptions options = read_warm_start_options(&in);
  in.done();
  if (faults_text != nullptr)
    *faults_text = faults.empty() ? "" : faults.text();
  else
    EXPECT_TRUE(faults.empty()) << faults.text();
  return options;
}

at::Tensor numbers(at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape), at::kFloat).reshape(shape);
}

/// The weights of linear layers and convolutions among these: all of their names but embeddings.
std::set<std::string> kernels_of(const StateList& live) {
  std::set<std::string> kernels;
  for (const StateEntry& entry : live)
    if (entry.key.ends_with(".weight") && !entry.key.starts_with("embedding"))
      kernels.insert(entry.key);
  return kernels;
}

class LoadWeights : public ::testing::Test {
 protected:
  LoadReport load(const std::vector<SafetensorsItem>& saved, const StateList& live,
                  const std::string& options = "") {
    write_safetensors(folder_ / "w.safetensors", saved, {});
    return load_weights(*open_weights(folder_ / "w.safetensors"), "w", live, kernels_of(live),
                        options_of(options));
  }
  std::string refusal(const std::vector<SafetensorsItem>& saved, const StateList& live,
                      const std::string& options = "") {
    try {
      load(saved, live, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      return error.what();
    }
    return "";
  }
  TemporaryFolder folder_;
};

TEST_F(LoadWeights, RulesRenameTheFirstThatMatches) {
  const at::Tensor a = at::zeros({2}), b = at::zeros({2}), c = at::zeros({2});
  const LoadReport report = load(
      {{"net.features.0.weight", at::ones({2})},
       {"net.features.12.weight", at::full({2}, 2.F)},
       {"net.head.bias", at::full({2}, 3.F)},
       {"optimizer/x", at::ones({1})},
       {"other", at::ones({1})}},
      {{"stem.weight", a}, {"blocks.12.weight", b}, {"head.bias", c}},
      R"(warm_start_rename: [{from: net/features/0, to: stem}, {from: 're:net\.features\.(\d+)', to: 'blocks/\1'}, {from: net, to: ''}])");
  EXPECT_THAT(report.loaded, ElementsAre(Pair("stem.weight", "net.features.0.weight"),
                                         Pair("blocks.12.weight", "net.features.12.weight"),
                                         Pair("head.bias", "net.head.bias")));
  EXPECT_THAT(report.unused, ElementsAre("other"));
  EXPECT_TRUE(a.equal(at::ones({2})));
  EXPECT_TRUE(b.equal(at::full({2}, 2.F)));
  EXPECT_TRUE(c.equal(at::full({2}, 3.F)));
}

TEST_F(LoadWeights, AMapIsReadWithItsLongestNameFirst) {
  const at::Tensor w = at::zeros({2}), b = at::zeros({2});
  const LoadReport report =
      load({{"dense/kernel", at::ones({2})}, {"dense/bias", at::ones({2})}},
           {{"fc.w", w}, {"fc.bias", b}}, "warm_start_rename: {dense: fc, dense/kernel: fc/w}");
  EXPECT_EQ(report.loaded.size(), 2U);
}

TEST_F(LoadWeights, FaultsOfRulesHaveTheirPlace) {
  std::string faults;
  const auto of = [&](const std::string& rules) {
    options_of("warm_start_rename: " + rules, &faults);
    return faults;
  };
  EXPECT_THAT(of("[{from: a}]"), AllOf(HasSubstr("run.yaml:1:"), HasSubstr("must be a list of")));
  EXPECT_THAT(of("[a]"), HasSubstr("must be a list of"));
  EXPECT_THAT(of("text"), HasSubstr("must be a list of"));
  EXPECT_THAT(of("[{from: 're:(', to: a}]"), HasSubstr("is not a regular expression (RE2)"));
  EXPECT_THAT(of(R"([{from: 're:a', to: '\1'}])"), HasSubstr("cannot follow 're:a'"));
  EXPECT_THAT(of("[{from: '', to: a}]"), HasSubstr("empty name"));
  EXPECT_EQ(of("[{from: a, to: b}]"), "");
}

TEST_F(LoadWeights, ARuleWithoutAMatchAndTwoNamesForOneAreRefused) {
  const StateList live = {{"fc.bias", at::zeros({2})}};
  EXPECT_THAT(refusal({{"fc.bias", at::ones({2})}}, live, "warm_start_rename: {dens: fc}"),
              AllOf(HasSubstr("no name in the checkpoint matches 'dens'"),
                    HasSubstr("nearest: fc, fc.bias")));
  EXPECT_THAT(refusal({{"fc.bias", at::ones({2})}, {"dense.bias", at::ones({2})}}, live,
                      "warm_start_rename: {dense: fc}"),
              HasSubstr("both renamed to 'fc/bias'"));
}

TEST_F(LoadWeights, OfAFileWithoutValuesNothingIsNear) {
  EXPECT_THAT(
      refusal({}, {{"fc.bias", at::zeros({2})}}),
      HasSubstr("the checkpoint has no 'fc.bias' (nearest: none, as it contains no value)"));
}

/// The rules of docs/fine_tuning.md for what state dicts are often inside of.
TEST_F(LoadWeights, WrappersOfStateDicts) {
  const auto loads = [&](const std::string& begin, const std::string& rule) {
    const at::Tensor bias = at::zeros({2});
    const std::string fault = refusal({{begin + "fc.bias", at::ones({2})}}, {{"fc.bias", bias}},
                                      "warm_start_rename: [" + rule + "]");
    return fault.empty() ? bias.equal(at::ones({2})) : false;
  };
  EXPECT_TRUE(loads("", ""));
  EXPECT_TRUE(loads("model.", ""));
  EXPECT_FALSE(loads("state_dict.", ""));
  EXPECT_TRUE(loads("state_dict.", "{from: state_dict, to: ''}"));
  EXPECT_TRUE(loads("state_dict.model.", "{from: state_dict, to: ''}"));
  EXPECT_FALSE(loads("module.", ""));
  EXPECT_TRUE(loads("module.", "{from: module, to: ''}"));
  EXPECT_TRUE(loads("model.module.", "{from: module, to: ''}"));
  EXPECT_TRUE(loads("state_dict.module.", "{from: state_dict.module, to: ''}"));
}

TEST_F(LoadWeights, ARuleAboutModelAloneMeansIt) {
  const at::Tensor bias = at::zeros({2});
  const std::vector<SafetensorsItem> saved = {{"model.fc.bias", at::ones({2})}};
  for (const std::string from : {"model", "model.", "model/"}) {
    load(saved, {{"fc.bias", bias.zero_()}}, "warm_start_rename: [{from: " + from + ", to: ''}]");
    EXPECT_TRUE(bias.equal(at::ones({2}))) << from;
    load(saved, {{"trunk.fc.bias", bias.zero_()}},
         "warm_start_rename: [{from: " + from + ", to: trunk}]");
    EXPECT_TRUE(bias.equal(at::ones({2}))) << from;
  }
  const at::Tensor head = at::zeros({2});  // of no rule about model.model
  load({{"model.model.fc.bias", at::ones({2})}, {"model.head", at::ones({2})}},
       {{"trunk.fc.bias", bias.zero_()}, {"head", head}},
       "warm_start_rename: [{from: model.model, to: trunk}]");
  EXPECT_TRUE(bias.equal(at::ones({2})) && head.equal(at::ones({2})));
  EXPECT_THAT(
      refusal({{"fc.bias", at::ones({2})}}, {{"fc.bias", bias}}, "warm_start_rename: {model: ''}"),
      HasSubstr("no name in the checkpoint matches 'model'"));
  EXPECT_THAT(refusal({{"state_dict.fc.bias", at::ones({2})}}, {{"fc.bias", bias}},
                      "warm_start_rename: {statedict: ''}"),
              HasSubstr("(nearest: state_dict, "));
}

TEST_F(LoadWeights, OfManyFaultsTheFirstTenAreShown) {
  StateList live;
  for (int i = 0; i < 13; ++i) live.push_back({"v" + std::to_string(i), at::zeros({2})});
  const std::string text = refusal({{"other", at::ones({2})}}, live);
  EXPECT_THAT(text, AllOf(HasSubstr("'v9'"), HasSubstr("and 3 more"), Not(HasSubstr("'v10'"))));
}

TEST_F(LoadWeights, OtherFrameworksEndNamesOtherwise) {
  const at::Tensor counter = at::full({}, 7, at::kLong);
  const StateList live = {{"conv.weight", at::zeros({2, 3})},
                          {"norm.gamma", at::zeros({2})},
                          {"norm.beta", at::zeros({2})},
                          {"norm.moving_mean", at::zeros({2})},
                          {"norm.moving_variance", at::zeros({2})},
                          {"norm.num_batches", counter}};
  const LoadReport report = load({{"conv.weights", numbers({2, 3})},
                                  {"norm.weight", at::full({2}, 1.F)},
                                  {"norm.bias", at::full({2}, 2.F)},
                                  {"norm.running_mean", at::full({2}, 3.F)},
                                  {"norm.running_var", at::full({2}, 4.F)}},
                                 live);
  for (size_t i = 1; i < 5; ++i)
    EXPECT_TRUE(live[i].tensor.equal(at::full({2}, static_cast<float>(i)))) << live[i].key;
  EXPECT_THAT(report.kept, ElementsAre("norm.num_batches"));
  EXPECT_EQ(counter.item<int64_t>(), 7);
  EXPECT_THAT(report.unused, IsEmpty());
}

TEST_F(LoadWeights, TensorFlowsKernelsAreTurned) {
  const at::Tensor dense = at::zeros({5, 4}), conv = at::zeros({2, 3, 5, 7}),
                   depthwise = at::zeros({6, 1, 5, 7}), head = at::zeros({3, 2}),
                   bias = at::zeros({4});
  const at::Tensor depthwise_there = numbers({5, 7, 3, 2});  // 3 channels, multiplier 2
  load({{"dense.kernel", numbers({4, 5})},
        {"conv.weights", numbers({5, 7, 3, 2})},
        {"depth.depthwise_weights", depthwise_there},
        {"head.weights", numbers({1, 1, 2, 3})},
        {"dense.bias", numbers({4})}},
       {{"dense.weight", dense},
        {"conv.weight", conv},
        {"depth.weight", depthwise},
        {"head.weight", head},
        {"dense.bias", bias}},
       "warm_start_kernels: tensorflow");
  EXPECT_TRUE(dense.equal(numbers({4, 5}).t()));
  EXPECT_TRUE(conv.equal(numbers({5, 7, 3, 2}).permute({3, 2, 0, 1})));
  for (int64_t channel = 0; channel < 3; ++channel)
    for (int64_t i = 0; i < 2; ++i)  // output c * multiplier + i is of channel c
      EXPECT_TRUE(
          depthwise[channel * 2 + i][0].equal(depthwise_there.select(2, channel).select(2, i)));
  EXPECT_TRUE(head.equal(numbers({2, 3}).t()));
  EXPECT_TRUE(bias.equal(numbers({4})));
}

TEST_F(LoadWeights, KernelsOfOtherFilesAreTurnedWhereOnlyThatFits) {
  const at::Tensor dense = at::zeros({5, 4});
  const LoadReport report = load({{"dense.kernel", numbers({4, 5})}}, {{"dense.weight", dense}});
  EXPECT_TRUE(dense.equal(numbers({4, 5}).t()));
  EXPECT_THAT(report.turned, ElementsAre("dense.weight"));
}

TEST_F(LoadWeights, ASquareKernelOfUnknownOriginIsRefusedUntilTheKeySaysWhich) {
  const at::Tensor dense = at::zeros({4, 4});
  const StateList live = {{"dense.weight", dense}};
  const std::vector<SafetensorsItem> saved = {{"dense.kernel", numbers({4, 4})}};
  EXPECT_THAT(refusal(saved, live), AllOf(HasSubstr("fits 'dense.weight' in both dimension orders"),
                                          HasSubstr("checkpoint.warm_start_kernels")));
  EXPECT_TRUE(dense.equal(at::zeros({4, 4})));
  load(saved, live, "warm_start_kernels: tensorflow");
  EXPECT_TRUE(dense.equal(numbers({4, 4}).t()));
  load(saved, live, "warm_start_kernels: lockstep");
  EXPECT_TRUE(dense.equal(numbers({4, 4})));
  load({{"dense.weight", numbers({4, 4})}}, {{"dense.weight", dense.zero_()}});
  EXPECT_TRUE(dense.equal(numbers({4, 4}))) << "PyTorch's name, PyTorch's order";
}

TEST_F(LoadWeights, TablesOfEmbeddingsAreNeverTurned) {
  const at::Tensor square = at::zeros({4, 4}), table = at::zeros({6, 4});
  load({{"embedding.embeddings", numbers({4, 4})}, {"embedding_2._embeddings", numbers({6, 4})}},
       {{"embedding.weight", square}, {"embedding_2.weight", table}},
       "warm_start_kernels: tensorflow");
  EXPECT_TRUE(square.equal(numbers({4, 4})));
  EXPECT_TRUE(table.equal(numbers({6, 4})));
}

TEST_F(LoadWeights, KernelsOfOneAndThreeDimensionsOfSpaceAreTurned) {
  const at::Tensor one = at::zeros({2, 3, 5}), three = at::zeros({2, 3, 5, 7, 4});
  load({{"one.kernel", numbers({5, 3, 2})}, {"three.kernel", numbers({5, 7, 4, 3, 2})}},
       {{"one.weight", one}, {"three.weight", three}}, "warm_start_kernels: tensorflow");
  EXPECT_TRUE(one.equal(numbers({5, 3, 2}).permute({2, 1, 0})));
  EXPECT_TRUE(three.equal(numbers({5, 7, 4, 3, 2}).permute({4, 3, 0, 1, 2})));
}

TEST_F(LoadWeights, HalfNumbersBecomeFloatsAndNothingElseIsChanged) {
  const at::Tensor w = at::zeros({2});
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    load({{"w", at::tensor({1.5F, -2.F}).to(type)}}, {{"w", w}});
    EXPECT_TRUE(w.equal(at::tensor({1.5F, -2.F}))) << type;
  }
  EXPECT_THAT(
      refusal({{"w", at::ones({2}, at::kDouble)}}, {{"w", w}}),
      AllOf(HasSubstr("'w' is float64 [2] in the checkpoint, 'w' is float32 [2] in the model"),
            Not(HasSubstr("warm_start_kernels"))));
}

TEST_F(LoadWeights, ATensorOfAnUnknownTypeIsInTheWayWhereItIsAskedForAlone) {
  const std::string header =
      R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"odd":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[4,8]}})";
  const std::string length{static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  files::write_atomically(folder_ / "odd.safetensors", length + header + std::string(8, '\0'));
  const auto load_into = [&](const StateList& live) {
    return load_weights(*open_weights(folder_ / "odd.safetensors"), "w", live, {}, options_of(""));
  };
  const at::Tensor w = at::ones({1}), odd = at::ones({4});
  EXPECT_THAT(load_into({{"w", w}}).unused, ElementsAre("odd"));
  EXPECT_EQ(w.item<float>(), 0);
  try {
    load_into({{"odd", odd}});
    FAIL();
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kConfig);
    EXPECT_THAT(fault.what(), HasSubstr("'odd' is of an unknown type ('F8_E4M3') in the "
                                        "checkpoint, 'odd' is float32 [4] in the model"));
  }
}

TEST_F(LoadWeights, WhatDoesNotFitNamesBothSidesAndTheNearest) {
  const at::Tensor untouched = at::zeros({2});
  const std::string text = refusal({{"head.weight", numbers({4, 5})},
                                    {"head.bias", numbers({2})},
                                    {"heat.bias", numbers({2})},
                                    {"fc.kernel", numbers({3, 2})},
                                    {"a", numbers({1})},
                                    {"b", numbers({1})},
                                    {"c", numbers({1})},
                                    {"zzzzzzzzzzzzzzzzzzzzz", numbers({1})}},
                                   {{"head.bias", untouched},
                                    {"head.weight", at::zeros({3, 5})},
                                    {"fc.weight", at::zeros({2, 3})},
                                    {"haed.bias", at::zeros({2})}},
                                   "warm_start_kernels: lockstep");
  EXPECT_THAT(text,
              HasSubstr("'head.weight' is float32 [4, 5] in the checkpoint, "
                        "'head.weight' is float32 [3, 5] in the model (nearest: head.weight, "));
  EXPECT_THAT(
      text,
      HasSubstr("'fc.kernel' is float32 [3, 2] in the checkpoint, 'fc.weight' is float32 [2, 3]"));
  EXPECT_THAT(text, HasSubstr("it fits with checkpoint.warm_start_kernels: tensorflow"));
  EXPECT_THAT(text,
              HasSubstr("the checkpoint has no 'haed.bias' (nearest: head.bias, heat.bias, "));
  EXPECT_THAT(text, HasSubstr("checkpoint.checkpoint_exclude_scopes"));
  EXPECT_THAT(text, Not(HasSubstr("zzzz")));  // five, not all
  EXPECT_TRUE(untouched.equal(at::zeros({2}))) << "a value was written before all was checked";
}

TEST_F(LoadWeights, ScopesGoByTheBeginningsOfNames) {
  const StateList live = {
      {"block1.w", at::zeros({2})}, {"block10.w", at::zeros({2})}, {"head.w", at::zeros({2})}};
  const std::vector<SafetensorsItem> saved = {
      {"block1.w", at::ones({2})}, {"block10.w", at::ones({2})}, {"head.w", at::ones({2})}};
  LoadReport report = load(saved, live, "checkpoint_restore_scopes: block1");
  EXPECT_THAT(report.left_out, ElementsAre("head.w"));
  report =
      load(saved, live, "checkpoint_restore_scopes: block1, checkpoint_exclude_scopes: block1/");
  EXPECT_THAT(report.left_out, ElementsAre("block1.w", "head.w"));
  EXPECT_THAT(refusal(saved, live, "checkpoint_exclude_scopes: haed"),
              HasSubstr("no variable's name begins with 'haed' (nearest: head"));
}

}  // namespace load_weights_test
}  // namespace lockstep::checkpoint
