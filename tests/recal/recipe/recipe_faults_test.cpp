// Faults in a recipe's text: place and message of each refusal.
#include <gmock/gmock.h>

#include <sstream>

#include "recal/recipe/recipe_reader.h"
#include "tests/recal/recipe/complete_items.h"
#include "tests/recal/recipes.h"

namespace lockstep::recal {
namespace recipe_faults_test {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using tests::complete_items;
using tests::Item;
using tests::item;

const Item kRange = item("EpochRangeModifier");
const Item kPruning = item("GradualKSModifier");
const Item kRate = item("LearningRateModifier");

/// " (or 'start_step')" where a key may be given in steps as well.
std::string or_twin(const std::string& key) {
  if (key == "update_frequency") return " (or 'update_frequency_steps')";
  const size_t unit = key.find("_epoch");
  return unit == std::string::npos ? "" : " (or '" + key.substr(0, unit) + "_step')";
}

std::string faults_of(const Item& changed) { return recal::faults_of(recipe_of({changed.text()})); }

/// True if a missing key means -1, as in the system where these recipes come from.
bool has_default(const std::string& tag, const std::string& key) {
  return (tag == "LearningRateModifier" && key == "end_epoch") ||
         ((tag.starts_with("Set") || tag == "QuantizationModifier") && key == "start_epoch");
}

TEST(RecipeFaults, EachRequiredKeyIsMissed) {
  for (const std::string& tag : modifier_kinds().names()) {
    std::istringstream faults(recal::faults_of(recipe_of({"!" + tag + " {}"})));
    for (std::string fault; std::getline(faults, fault);)
      EXPECT_THAT(fault, AllOf(StartsWith("3:5: '" + tag + "."), EndsWith(" is required")));
  }
  for (const Item& complete : complete_items()) {
    EXPECT_EQ(faults_of(complete), "");
    for (const auto& [key, value] : complete.pairs) {
      const std::string missed =
          "3:5: '" + complete.tag + "." + key + "'" + or_twin(key) + " is required";
      EXPECT_EQ(faults_of(complete.without(key)), has_default(complete.tag, key) ? "" : missed)
          << complete.text();
    }
  }
}

TEST(RecipeFaults, UnknownKeysAreNamedWithTheNearest) {
  const Item mistyped = kPruning.with("final_sparsty", "0.9").without("final_sparsity");
  EXPECT_EQ(
      faults_of(mistyped),
      "3:5: 'GradualKSModifier.final_sparsity' is required\n" +
          place_of(mistyped, "final_sparsty") +
          "unknown key 'final_sparsty' in 'GradualKSModifier' (did you mean 'final_sparsity'?)");
  for (const Item& complete : complete_items())
    EXPECT_THAT(faults_of(complete.with("zzzzzz", "1")),
                HasSubstr("unknown key 'zzzzzz' in '" + complete.tag + "'"));
}

TEST(RecipeFaults, UnknownTags) {
  EXPECT_EQ(recal::faults_of(recipe_of({"!GradualKSModifer {params: __ALL__}"})),
            std::string("3:5: unknown modifier !GradualKSModifer (did you mean "
                        "'GradualKSModifier'?); available: ") +
                known_tags());
  EXPECT_EQ(recal::faults_of(recipe_of({"!!python/object:os.system {a: 1}"})),
            std::string(
                "3:5: unknown modifier 'tag:yaml.org,2002:python/object:os.system'; available: ") +
                known_tags());
}

TEST(RecipeFaults, OtherNamesOfModifiers) {
  const auto summary = [](const std::string& item) {
    return good_recipe(recipe_of({item})).modifiers()[0]->summary();
  };
  for (const std::string alias : {"GMPruningModifier", "MagnitudePruningModifier"}) {
    Item renamed = kPruning;
    renamed.tag = alias;
    EXPECT_EQ(summary(renamed.text()), summary(kPruning.text()));
    EXPECT_EQ(faults_of(renamed.without("params")), "3:5: '" + alias + ".params' is required");
  }
  Item global = kPruning;
  global.tag = "GlobalMagnitudePruningModifier";
  EXPECT_EQ(summary(global.text()), summary(kPruning.with("global_sparsity", "true").text()));
  EXPECT_EQ(summary("!ConstantPruningModifier {params: __ALL__}"),
            summary("!ConstantKSModifier {params: __ALL__}"));
  EXPECT_EQ(recal::faults_of(recipe_of({"!GMPruningModifer {params: __ALL__}"})),
            std::string("3:5: unknown modifier !GMPruningModifer (did you mean "
                        "'GMPruningModifier'?); available: ") +
                known_tags());
}

TEST(RecipeFaults, ItemsWithoutTag) {
  const std::string wanted = std::string(
                                 "an item of 'modifiers' needs a tag that names it, such as "
                                 "!GradualKSModifier; available: ") +
                             known_tags();
  EXPECT_EQ(recal::faults_of(recipe_of({"{start_epoch: 0.0}"})), "3:5: " + wanted);
  EXPECT_EQ(recal::faults_of(recipe_of({"'EpochRangeModifier'"})), "3:5: " + wanted);
  EXPECT_EQ(recal::faults_of(recipe_of({"EpochRangeModifier: {start_epoch: 0.0, end_epoch: 1}"})),
            "3:5: a modifier is named by a tag: write '- !EpochRangeModifier' without a colon");
}

TEST(RecipeFaults, ATagWithoutBody) {
  EXPECT_EQ(
      recal::faults_of("version: 1.0.0\nmodifiers:\n  - !ConstantKSModifier\n"),
      "3:5: !ConstantKSModifier has no keys: write them below it, indented deeper than the dash");
  EXPECT_THAT(recal::faults_of(recipe_of({"!ConstantKSModifier [params]"})),
              HasSubstr("has no keys"));
}

TEST(RecipeFaults, TheTopLevel) {
  EXPECT_EQ(recal::faults_of("version: 1.0.0\n"), "1:1: 'modifiers' is required");
  EXPECT_EQ(recal::faults_of("version: 1.0.0\nmodifiers: {a: 1}\n"),
            "2:12: 'modifiers' must be a list of items such as '- !EpochRangeModifier'");
  EXPECT_EQ(recal::faults_of("version: 1.0.0\nmodifiers:\n"),
            "2:1: 'modifiers' must be a list of items such as '- !EpochRangeModifier'");
  EXPECT_EQ(recal::faults_of("version: 1.0.0\nmodifiers: []\nmodifier: 3\n"),
            "3:1: unknown key 'modifier' (did you mean 'modifiers'?)");
  EXPECT_EQ(recal::faults_of("- !ConstantKSModifier {params: __ALL__}\n"),
            "1:1: the file must be a map of keys");
}

TEST(RecipeFaults, Versions) {
  const auto version = [](const std::string& text) {
    return recal::faults_of("version: " + text + "\nmodifiers: []\n");
  };
  EXPECT_EQ(version("1.12.3"), "");
  EXPECT_EQ(version("'1.0.0'"), "");
  for (const std::string bad : {"1", "1.0", "1.0.0.0", "1.0.", "1.x.0", "-1.0.0", "v1.0.0", "1..0"})
    EXPECT_EQ(version(bad),
              "1:10: 'version' must be three numbers such as 1.0.0, not '" + bad + "'");
  EXPECT_EQ(version("2.0.0"), "1:10: 'version' is 2.0.0; this program reads versions up to 1.x");
}

TEST(RecipeFaults, Epochs) {
  EXPECT_EQ(faults_of(kRange.with("end_epoch", "0.0")),
            place_of(kRange.with("end_epoch", "0.0"), "0.0}") +
                "'EpochRangeModifier.end_epoch' is 0, it must be greater than start_epoch (0)");
  EXPECT_EQ(faults_of(kPruning.with("end_epoch", "4.5")),
            place_of(kPruning.with("end_epoch", "4.5"), "4.5") +
                "'GradualKSModifier.end_epoch' is 4.5, it must be greater than start_epoch (5)");
  EXPECT_THAT(faults_of(kRate.with("start_epoch", "30")),
              HasSubstr("it must be greater than start_epoch (30)"));
  EXPECT_EQ(faults_of(kRange.with("start_epoch", "-2")),
            "3:39: 'EpochRangeModifier.start_epoch' is -2, it must be >= 0 and <= 1000000");
  EXPECT_THAT(faults_of(item("SetLearningRateModifier").with("start_epoch", "-0.5")),
              HasSubstr("it must be >= 0"));
}

TEST(RecipeFaults, NumbersThatAreNone) {
  for (const std::string bad :
       {".inf", "-.inf", ".nan", "5%", "1_000", "0x10", "1e400", "''", "abc", ".", "1.2.3"}) {
    const std::string text = bad == "''" ? "" : bad;
    EXPECT_EQ(
        faults_of(kRange.with("end_epoch", bad)),
        "3:55: 'EpochRangeModifier.end_epoch' must be a finite decimal number, not '" + text + "'")
        << bad;
    EXPECT_NE(faults_of(kPruning.with("init_sparsity", bad)), "") << bad;
    EXPECT_NE(faults_of(kPruning.with("update_frequency", bad)), "") << bad;
    EXPECT_NE(faults_of(kRate.with("init_lr", bad)), "") << bad;
    EXPECT_NE(faults_of(kRate.with("lr_kwargs", "{gamma: " + bad + "}")), "") << bad;
  }
  // A decimal comma: outside a flow map it is a text.
  EXPECT_EQ(recal::faults_of("version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier\n    "
                             "start_epoch: 0,5\n    end_epoch: 3\n"),
            "4:18: 'EpochRangeModifier.start_epoch' must be a finite decimal number, not '0,5'");
  EXPECT_EQ(faults_of(kRange.with("end_epoch", "[1]")),
            "3:55: 'EpochRangeModifier.end_epoch' must be a finite decimal number, not a list");
  EXPECT_THAT(faults_of(kRange.with("end_epoch", "~")), HasSubstr("is required"));  // as if absent
  EXPECT_THAT(faults_of(kRange.with("end_epoch", "")), HasSubstr("not nothing"));
  EXPECT_THAT(faults_of(kRange.with("end_epoch", "1.00000000000000000001")),
              HasSubstr("at most 18 digits"));
}

TEST(RecipeFaults, Sparsities) {
  EXPECT_EQ(faults_of(kPruning.with("final_sparsity", "0.04")),
            place_of(kPruning.with("final_sparsity", "0.04"), "0.04") +
                "'GradualKSModifier.final_sparsity' is 0.04, it must not be less than "
                "init_sparsity (0.05)");
  for (const std::string bad : {"1", "1.0", "-0.1", "80"}) {
    EXPECT_THAT(
        faults_of(kPruning.with("final_sparsity", bad)),
        HasSubstr("'GradualKSModifier.final_sparsity' is " + bad + ", it must be >= 0 and < 1"));
    EXPECT_THAT(
        faults_of(kPruning.with("init_sparsity", bad)),
        HasSubstr("'GradualKSModifier.init_sparsity' is " + bad + ", it must be >= 0 and < 1"));
  }
  EXPECT_EQ(faults_of(kPruning.with("init_sparsity", "0.8")), "");  // equal is allowed
}

TEST(RecipeFaults, UpdateFrequency) {
  for (const std::string bad : {"0", "0.0", "-2"})
    EXPECT_THAT(
        faults_of(kPruning.with("update_frequency", bad)),
        HasSubstr("'GradualKSModifier.update_frequency' is " + bad + ", it must be >= 1e-06"));
}

TEST(RecipeFaults, Choices) {
  EXPECT_EQ(faults_of(kPruning.with("inter_func", "cubik")),
            place_of(kPruning.with("inter_func", "cubik"), "cubik") +
                "'GradualKSModifier.inter_func' must be one of cubic, linear, inverse_cubic, not "
                "'cubik' (did you mean 'cubic'?)");
  EXPECT_EQ(faults_of(kRate.with("lr_class", "ExponentalLR")),
            place_of(kRate.with("lr_class", "ExponentalLR"), "ExponentalLR") +
                "'LearningRateModifier.lr_class' must be one of ExponentialLR, StepLR, "
                "MultiStepLR, CosineAnnealingWarmRestarts, not 'ExponentalLR'"
                " (did you mean 'ExponentialLR'?)");
  for (const std::string bad : {"y", "1", "maybe"})
    EXPECT_THAT(
        faults_of(kPruning.with("leave_enabled", bad)),
        HasSubstr("'GradualKSModifier.leave_enabled' must be true or false, not '" + bad + "'"));
}

TEST(RecipeFaults, LearningRates) {
  EXPECT_THAT(faults_of(kRate.with("init_lr", "-0.1")),
              HasSubstr("'LearningRateModifier.init_lr' is -0.1, it must be >= 0"));
  EXPECT_THAT(faults_of(item("SetLearningRateModifier").with("learning_rate", "-0.1")),
              HasSubstr("it must be >= 0"));
  for (const Item& zero :
       {kRate.with("init_lr", "0.0"), item("SetLearningRateModifier").with("learning_rate", "0.0")})
    EXPECT_EQ(faults_of(zero), "");
}

Item with_kwargs(const std::string& lr_class, const std::string& kwargs) {
  return kRate.with("lr_class", lr_class).with("lr_kwargs", kwargs);
}
std::string kwargs_faults(const std::string& lr_class, const std::string& kwargs) {
  return faults_of(with_kwargs(lr_class, kwargs));
}
/// Diagnostics of the kwargs, their columns counted from the kwargs' first character.
std::string inner_faults(const std::string& lr_class, const std::string& kwargs) {
  const size_t column = 5 + with_kwargs(lr_class, kwargs).text().find(kwargs);
  Diagnostics faults;
  parse_recipe("r.yaml", recipe_of({with_kwargs(lr_class, kwargs).text()}), &faults);
  std::string out;
  for (const Fault& fault : faults.list())
    out += std::to_string(fault.column - static_cast<int64_t>(column)) + ": " + fault.message;
  return out;
}

TEST(RecipeFaults, LrKwargs) {
  EXPECT_EQ(inner_faults("ExponentialLR", "{}"),
            "0: 'LearningRateModifier.lr_kwargs.gamma' is required");
  EXPECT_EQ(kwargs_faults("ExponentialLR", "~"),
            "3:5: 'LearningRateModifier.lr_kwargs' is required");
  EXPECT_EQ(inner_faults("ExponentialLR", "0.9"),
            "0: 'LearningRateModifier.lr_kwargs' must be a map of keys");
  EXPECT_EQ(inner_faults("ExponentialLR", "{gamma: 0.9, step: 2}"),
            "13: unknown key 'step' in 'LearningRateModifier.lr_kwargs'; available: gamma");
  EXPECT_EQ(inner_faults("StepLR", "{gamma: 0.9}"),
            "0: 'LearningRateModifier.lr_kwargs.step' is required");
  EXPECT_THAT(kwargs_faults("StepLR", "{gamma: 0.9, step: 0}"),
              HasSubstr("lr_kwargs.step' is 0, it must be >= 1e-06"));
  EXPECT_THAT(kwargs_faults("StepLR", "{gamma: 0, step: 1}"),
              HasSubstr("lr_kwargs.gamma' is 0, it must be > 0"));
}

TEST(RecipeFaults, Milestones) {
  EXPECT_EQ(inner_faults("MultiStepLR", "{gamma: 0.9}"),
            "0: 'LearningRateModifier.lr_kwargs.milestones' is required");
  const auto milestones = [](const std::string& list) {
    return inner_faults("MultiStepLR", "{gamma: 0.9, milestones: " + list + "}");
  };
  const std::string key = "'LearningRateModifier.lr_kwargs.milestones' ";
  EXPECT_EQ(milestones("[2.0, 5.5, 10]"), "");
  EXPECT_EQ(milestones("[5.5, 2.0]"), "31: " + key + "must rise: 2 follows 5.5");
  EXPECT_EQ(milestones("[2, 2.0]"), "29: " + key + "must rise: 2 follows 2");
  EXPECT_EQ(milestones("[]"), "25: " + key + "must be a list of at least one epoch");
  EXPECT_EQ(milestones("2.0"), "25: " + key + "must be a list of at least one epoch");
  EXPECT_EQ(milestones("[a]"), "26: " + key + "must contain epochs (decimal numbers, 0 or more)");
  EXPECT_THAT(milestones("[-1]"), HasSubstr("must contain epochs"));
  EXPECT_THAT(milestones("[.inf]"), HasSubstr("must contain epochs"));
  EXPECT_EQ(milestones("[2, 25]"),
            "25: " + key + "holds 25, which is not between start_epoch (0) and end_epoch (25)");
}

TEST(RecipeFaults, Params) {
  EXPECT_EQ(faults_of(kPruning.with("params", "[]")),
            "3:33: 'GradualKSModifier.params' must be __ALL__ or a list of names and re:patterns, "
            "not an empty list");
  EXPECT_THAT(faults_of(kPruning.with("params", "{a: 1}")), HasSubstr("must be __ALL__ or a list"));
  EXPECT_EQ(faults_of(kPruning.with("params", "~")), "3:5: 'GradualKSModifier.params' is required");
  EXPECT_EQ(faults_of(kPruning.with("params", "[head, __ALL__]")),
            "3:40: __ALL__ already means every layer: write 'params: __ALL__' without a list");
  EXPECT_EQ(faults_of(kPruning.with("params", "[__ALL__]")), "");
  EXPECT_EQ(faults_of(kPruning.with("params", "__ALL_PRUNABLE__")), "");
  EXPECT_EQ(faults_of(kPruning.with("params", "[[a]]")),
            "3:34: an entry of params must be a name or a re:pattern");
  EXPECT_EQ(faults_of(kPruning.with("params", "['re:(conv']")),
            "3:34: 're:(conv' is not a regular expression (RE2): missing ): (conv");
}

TEST(RecipeFaults, ASpaceBehindTheRegexPrefixIsAMap) {
  EXPECT_EQ(faults_of(kPruning.with("params", "[re:.*conv]")), "");
  EXPECT_EQ(faults_of(kPruning.with("params", "[re: .*conv]")),
            "3:34: 're: ...' with a space is a map in YAML: remove the space after 're:' or quote "
            "the whole pattern");
}

TEST(RecipeFaults, APatternThatBeginsWithAStarMustBeQuoted) {
  const std::string text =
      "version: 1.0.0\nmodifiers:\n  - !ConstantKSModifier\n    params: *.conv\n";
  EXPECT_THAT(recal::faults_of(text), StartsWith("4:"));
  EXPECT_THAT(recal::faults_of(text), HasSubstr("must be quoted"));
}

TEST(RecipeFaults, WhatYamlLetsPass) {
  EXPECT_THAT(faults_of({"EpochRangeModifier",
                         {{"start_epoch", "0"}, {"end_epoch", "1"}, {"end_epoch", "2"}}}),
              HasSubstr("3:56: duplicate key 'end_epoch'"));
  EXPECT_THAT(faults_of(kRange.with("<<", "{a: 1}")), HasSubstr("merge keys"));
  EXPECT_THAT(recal::faults_of(""), HasSubstr("empty"));
  EXPECT_THAT(recal::faults_of("version: 1.0.0\nmodifiers: []\n---\na: 1\n"),
              HasSubstr("second document"));
  EXPECT_THAT(recal::faults_of("version: 1.0.0\nmodifiers:\n\t- !ConstantKSModifier\n"),
              HasSubstr("tab"));
}

TEST(RecipeFaults, AllInOnePassWithPlaceAndCaret) {
  Diagnostics faults;
  parse_recipe("r.yaml",
               "version: 3\nmodifiers:\n  - !EpochRangeModifier\n    start_epoch: -2\n    "
               "end_epoch: 5%\n  - !Wrong {}\n",
               &faults);
  EXPECT_EQ(faults.list().size(), 4U) << faults.text();
  EXPECT_THAT(faults.text(), HasSubstr("r.yaml:5:16: error: 'EpochRangeModifier.end_epoch' must be "
                                       "a finite decimal number, not '5%'\n"
                                       "      end_epoch: 5%\n"
                                       "                 ^\n"));
}

}  // namespace recipe_faults_test
}  // namespace lockstep::recal
