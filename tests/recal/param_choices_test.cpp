// Keys of `optimizer` that choose parameters by name: decay, matrices, multipliers of the rate.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "recal/schedule/param_choices.h"

namespace lockstep::recal {
namespace param_choices_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A network of Lockstep's own layers, then one as PyTorch names it.
ParamTable table() {
  const auto param = [](const char* name, std::vector<int64_t> shape, bool decayed = false) {
    return Param{.name = name, .tensor = at::zeros(shape), .decayed = decayed};
  };
  return {param("conv.weight", {4, 1, 3, 3}, true),
          param("conv.bias", {4}),
          param("norm.gamma", {4}),
          param("norm.beta", {4}),
          param("fc.weight", {2, 4}, true),
          param("fc.bias", {2}),
          param("ln.weight", {4}),
          param("ln.bias", {4}),
          param("bias", {1}),
          param("embedding.weight", {9, 4})};
}

std::vector<std::string> decayed(const std::vector<std::string>& groups,
                                 const std::vector<std::string>& exclusions = {}) {
  ParamTable params = table();
  choose_decayed(groups, exclusions, &params);
  std::vector<std::string> names;
  for (const Param& param : params)
    if (param.decayed) names.push_back(param.name);
  return names;
}

TEST(DecayGroups, E30_EachGroupHoldsItsParameters) {
  EXPECT_THAT(decayed({"weights"}), ElementsAre("conv.weight", "fc.weight"));
  EXPECT_THAT(decayed({"normalisation"}),
              ElementsAre("norm.gamma", "norm.beta", "ln.weight", "ln.bias"));
  EXPECT_THAT(decayed({"biases"}), ElementsAre("conv.bias", "fc.bias", "bias"));
  EXPECT_THAT(decayed({}), IsEmpty());
}

TEST(DecayGroups, AnExclusionWinsOverItsGroup) {
  EXPECT_THAT(decayed({"weights", "normalisation"}, {"norm", "fc"}),
              ElementsAre("conv.weight", "ln.weight", "ln.bias"));
}

std::vector<std::string> matrices(const std::vector<std::string>& entries,
                                  const std::vector<std::string>& layers) {
  ParamTable params = table();
  for (Param& param : params)
    param.prunable = std::find(layers.begin(), layers.end(), param.name) != layers.end();
  choose_matrices(entries, &params);
  std::vector<std::string> names;
  for (const Param& param : params)
    if (param.is_matrix) names.push_back(param.name);
  return names;
}

TEST(Matrices, AreTheWeightsOfLayersButTheLast) {
  const std::vector<std::string> layers{"conv.weight", "fc.weight", "embedding.weight"};
  EXPECT_THAT(matrices({}, layers), ElementsAre("conv.weight", "fc.weight"));
  EXPECT_THAT(matrices({"embedding", "re:fc.*"}, layers),
              ElementsAre("fc.weight", "embedding.weight"));
}

TEST(Matrices, MustExist) {
  EXPECT_THROW(matrices({}, {"fc.weight"}), Error) << "the head alone";
  EXPECT_THROW(matrices({"fc.bias"}, {}), Error) << "a vector";
  EXPECT_THROW(matrices({"fcc"}, {}), Error);
  EXPECT_THROW(matrices({"re:("}, {}), Error);
}

std::vector<double> multipliers(const std::vector<std::pair<std::string, double>>& entries) {
  ParamTable params = table();
  choose_multipliers(entries, &params);
  std::vector<double> found;
  for (const Param& param : params) found.push_back(param.rate_multiplier);
  return found;
}

TEST(Multipliers, OfTheLongestNameCountInAnyOrder) {
  std::vector<std::pair<std::string, double>> entries{
      {"re:.*weight", 0.5}, {"fc", 3}, {"fc.bias", 4}, {"ln.weight", 1}, {"re:conv.*t", 0.5}};
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(multipliers(entries), ElementsAre(0.5, 1, 1, 1, 3, 4, 1, 1, 1, 0.5));
    std::rotate(entries.begin(), entries.begin() + 1, entries.end());
  }
}

TEST(Multipliers, OfANameCountWherePatternsContradict) {
  std::vector<std::pair<std::string, double>> entries{
      {"re:fc.w.*", 0.5}, {"re:.*fc.weight", 2}, {"fc", 3}};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(multipliers(entries)[4], 3);
    std::rotate(entries.begin(), entries.begin() + 1, entries.end());
  }
}

TEST(Multipliers, ThatContradictAreRefused) {
  EXPECT_THROW(multipliers({{"re:.*weight", 0.5}, {"re:fc.*", 2}}), Error);
  EXPECT_THROW(multipliers({{"re:fc.*", 2}, {"re:.*weight", 0.5}}), Error);
  EXPECT_THROW(multipliers({{"fcc", 2}}), Error);
  EXPECT_THROW(multipliers({{"re:(", 2}}), Error);
}

}  // namespace param_choices_test
}  // namespace lockstep::recal
