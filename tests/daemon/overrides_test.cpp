#include "daemon/config/overrides.h"

#include <cstdlib>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "daemon/config/run_config.h"
#include "support/temporary_folder.h"

namespace lockstep::daemon {
namespace overrides_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

/// A run file whose training data's section is used a second time.
constexpr const char* kFile = R"(version: 1.0.0
run: {name: a, seed: 3}
data:
  train: &d {type: digits, split: train}
  eval: *d
  global_batch_size: 8
train: {max_steps: 5}
optimizer: {type: momentum, learning_rate: 0.1}
checkpoint: {save_checkpoints_steps: 10}
)";

using Values = std::map<std::string, std::string>;

/// Sets environment variables until the test ends.
class Environment {
 public:
  explicit Environment(const Values& values) {
    for (const auto& [name, value] : values) {
      ::setenv(name.c_str(), value.c_str(), 1);
      names_.push_back(name);
    }
  }
  ~Environment() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::string> names_;
};

class Overrides : public ::testing::Test {
 protected:
  RunConfig read(const std::vector<std::string>& sets, const std::string& file = kFile) {
    const std::string path = (folder_.path() / "run.yaml").string();
    files::write_atomically(path, file);
    std::vector<Override> overrides;
    for (const std::string& text : sets) overrides.push_back(parse_set(text));
    faults_ = Diagnostics();
    return load_run_config(path, overrides, &faults_);
  }
  RunConfig load(const std::vector<std::string>& sets, const std::string& file = kFile) {
    RunConfig config = read(sets, file);
    faults_.throw_if_any("test");
    return config;
  }
  std::string faults_of(const std::vector<std::string>& sets, const std::string& file = kFile) {
    (void)read(sets, file);
    return faults_.empty() ? "" : faults_.text();
  }
  /// "place: error: message" of each fault, without the source lines.
  std::vector<std::string> messages_of(const std::vector<std::string>& sets,
                                       const std::string& file = kFile) {
    (void)read(sets, file);
    std::vector<std::string> all;
    for (const Fault& fault : faults_.list()) {
      const std::string place =
          fault.line > 0 ? ":" + std::to_string(fault.line) + ":" + std::to_string(fault.column)
                         : "";
      all.push_back(std::filesystem::path(fault.file).filename().string() + place + ": " +
                    fault.message);
    }
    return all;
  }
  std::string written(const std::string& name, const std::string& text) {
    const std::string path = (folder_.path() / name).string();
    files::write_atomically(path, text);
    return path;
  }

  tests::TemporaryFolder folder_;
  Diagnostics faults_;
};

TEST_F(Overrides, WhatAnAliasNamesStaysAsItIsWhereTheOverrideDoesNotPoint) {
  const RunConfig config = load({"data.eval.split=test"});
  EXPECT_THAT(config.settings, Contains("data.train.split=train"));
  EXPECT_THAT(config.settings, Contains("data.eval.split=test"));
  const RunConfig other = load({"data.train.split=test"});
  EXPECT_THAT(other.settings, Contains("data.train.split=test"));
  EXPECT_THAT(other.settings, Contains("data.eval.split=train"));
}

TEST_F(Overrides, AnAliasOfAnEarlierOverrideIsDetachedToo) {
  const RunConfig config =
      load({"data={train: &x {type: digits, split: train}, eval: *x, global_batch_size: 4}",
            "data.eval.split=test", "data.eval.path=other.csv"});
  EXPECT_THAT(config.settings, Contains("data.train.split=train"));
  EXPECT_THAT(config.settings, Not(Contains(StartsWith("data.train.path"))));
  EXPECT_THAT(config.settings, Contains("data.eval.split=test"));
  EXPECT_THAT(config.settings, Contains("data.eval.path=other.csv"));
}

TEST_F(Overrides, AnAliasMayNameAnAnchorOfTheFile) {
  EXPECT_THAT(load({"data.eval=*d"}).settings, Contains("data.eval.split=train"));
  EXPECT_THAT(faults_of({"data.eval=*e"}), HasSubstr("--set data.eval:1:1: error: "));
}

TEST_F(Overrides, TagsStay) {
  const RunConfig config = load({"modifiers=[!EpochRangeModifier {start_epoch: 0, end_epoch: 2}]"});
  ASSERT_EQ(config.recipe.modifiers().size(), 1U);
  EXPECT_THAT(config.settings, Contains("modifiers[0]=!EpochRangeModifier"));
}

TEST_F(Overrides, AnExpressionInAnOverrideIsComputedAndItsFaultHasItsPlace) {
  EXPECT_EQ(load({"modifiers=[!EpochRangeModifier {start_epoch: 0, end_epoch: eval(1 + 2)}]"})
                .recipe.modifiers()
                .size(),
            1U);
  EXPECT_THAT(messages_of({"modifiers=[!EpochRangeModifier {start_epoch: 0, end_epoch: eval(x)}]"}),
              ElementsAre(StartsWith("--set modifiers:1:55: 'eval(x)', character 6: ")));
}

TEST_F(Overrides, TheReaderIsAsStrictAsForTheFile) {
  EXPECT_THAT(messages_of({"optimizer={type: sgd, type: adam}"}),
              ElementsAre("--set optimizer:1:13: duplicate key 'type': keep one of them"));
  EXPECT_THAT(messages_of({"optimizer={<<: {type: sgd}}"}),
              ElementsAre(HasSubstr("--set optimizer:1:2: merge keys ('<<') are not supported")));
  EXPECT_THAT(messages_of({"model.layers=" + std::string(65, '[') + std::string(65, ']')}),
              ElementsAre(HasSubstr("is nested more than 64 deep")));
  EXPECT_THAT(messages_of({"run.name=a: b"}), ElementsAre(StartsWith("--set run.name:1:2: ")));
  EXPECT_THAT(messages_of({"run.name=\"\xff\""}),
              ElementsAre(HasSubstr("--set run.name:1:0: byte 1 is not valid UTF-8")));
  EXPECT_THAT(messages_of({"run.name=" + std::string(2 << 20, 'x')}),
              ElementsAre("--set run.name: has more than 1 MiB"));
}

TEST_F(Overrides, AFaultIsToldWithLineColumnAndText) {
  EXPECT_EQ(faults_of({"optimizer={type: sgd, learning_rate: fast}"}),
            "--set optimizer:1:28: error: 'optimizer.learning_rate' must be a finite decimal "
            "number, not 'fast'\n"
            "  {type: sgd, learning_rate: fast}\n"
            "                             ^\n"
            "1 error; nothing was started");
  EXPECT_THAT(messages_of({"optimizer=\ntype: sgd\nlearning_rate: fast"}),
              ElementsAre(StartsWith("--set optimizer:3:16: 'optimizer.learning_rate' must")));
  const Environment one(Values{{"LOCKSTEP_RUN_SEED", "many"}});
  EXPECT_THAT(messages_of({}), ElementsAre("environment LOCKSTEP_RUN_SEED:1:1: 'run.seed' must be "
                                           "a whole number, not 'many'"));
}

TEST_F(Overrides, AnUnknownKeyIsAnErrorWithTheNearestOne) {
  EXPECT_THAT(messages_of({"optimizer.lr=0.1"}),
              ElementsAre("--set optimizer.lr: unknown key 'optimizer.lr' (did you mean "
                          "'optimizer.learning_rate'?)"));
  EXPECT_THAT(messages_of({"learning_rate=0.1"}),
              ElementsAre(HasSubstr("(did you mean 'optimizer.learning_rate'?)")));
  EXPECT_THAT(messages_of({"train.max_stps=4"}),
              ElementsAre(HasSubstr("(did you mean 'train.max_steps'?)")));
  EXPECT_THAT(
      messages_of({"eval.nothing_like_it=4"}),
      ElementsAre(HasSubstr("; available: eval.on_save, eval.every_epochs, eval.batch_size")));
  EXPECT_THAT(
      messages_of({"zzzzzzzzz=4"}),
      ElementsAre(HasSubstr("; available: callbacks, checkpoint, control, data, estimator, ")));
  EXPECT_THAT(messages_of({"callbacks.own={type: lgo}", "callbacks.own.every=4"}),
              ElementsAre(HasSubstr("unknown callback 'lgo' (did you mean 'log'?)")));
  EXPECT_THAT(messages_of({"callbacks.own.=4"}), ElementsAre(HasSubstr("unknown key")));
  EXPECT_THAT(messages_of({"run.name.first=4"}), ElementsAre(HasSubstr("unknown key")));
  EXPECT_THAT(messages_of({"run.\xff\n=4"}), ElementsAre(HasSubstr("unknown key 'run."
                                                                   "?"
                                                                   "?'")));
  EXPECT_THAT(messages_of({"version=1.0.0"}), ElementsAre(HasSubstr("only in the file")));
  // Known, but not to the type that is chosen: the reader tells.
  EXPECT_THAT(messages_of({"optimizer.adam_beta1=0.5"}),
              ElementsAre(StartsWith("--set optimizer.adam_beta1: unknown key 'adam_beta1' in "
                                     "'optimizer'")));
}

TEST_F(Overrides, APathThroughAValueIsAnError) {
  EXPECT_THAT(messages_of({"checkpoint=off", "checkpoint.prefix=m"}),
              ElementsAre("--set checkpoint.prefix: 'checkpoint' is not a map of keys"));
}

TEST_F(Overrides, NullTakesAKeyBack) {
  EXPECT_EQ(load({}).train.max_steps, 5);
  EXPECT_EQ(load({"train.max_steps=null", "train.max_epochs=2"}).train.max_steps, std::nullopt);
  EXPECT_EQ(load({"train.max_steps=~", "train.max_epochs=2"}).train.max_steps, std::nullopt);
  const RunConfig timed =
      load({"checkpoint.save_checkpoints_steps=null", "checkpoint.save_checkpoints_secs=60"});
  EXPECT_EQ(timed.checkpoint.save_checkpoints_steps, std::nullopt);
  EXPECT_EQ(timed.checkpoint.save_checkpoints_secs, 60);
  EXPECT_EQ(
      load({"data.global_batch_size=null", "data.batch_size_per_rank=4"}).data.batch_size_per_rank,
      4);
  EXPECT_EQ(load({"run.seed=null"}).run.seed, 17) << "the default";
  EXPECT_EQ(load({"optimizer=null"}).optimizer.learning_rate, 0.01);
  EXPECT_EQ(load({"run.seed=null", "run.seed=4"}).run.seed, 4);
  EXPECT_THAT(load({"train.max_steps=null", "train.max_epochs=2"}).settings,
              Not(Contains(HasSubstr("max_steps"))));
}

TEST_F(Overrides, NullMeansTheSameInTheFile) {
  const std::string file =
      "run: {name: a, seed: ~}\ndata: {train: {type: digits}, eval: null, "
      "global_batch_size: 8}\ntrain:\n  max_steps: null\n  max_epochs: 1\n";
  EXPECT_EQ(load({}, file).run.seed, 17);
  EXPECT_EQ(load({}, file).train.max_steps, std::nullopt);
  EXPECT_EQ(load({}, file).digest(),
            load({},
                 "run: {name: a}\ndata: {train: {type: digits}, global_batch_size: "
                 "8}\ntrain: {max_epochs: 1}\n")
                .digest());
}

TEST_F(Overrides, ARequiredKeyCannotBeTakenBackAndNothingIsNotNull) {
  EXPECT_THAT(messages_of({"run.name=null"}), ElementsAre(HasSubstr("'run.name' is required")));
  EXPECT_THAT(messages_of({"run.seed="}),
              ElementsAre(HasSubstr("--set run.seed: 'run.seed' must be a whole number, not "
                                    "nothing")));
  EXPECT_THAT(messages_of({},
                          "run: {name: a, seed: }\ndata: {train: {type: digits}, "
                          "global_batch_size: 8}\ntrain: {max_steps: 1}\n"),
              ElementsAre(HasSubstr("run.yaml:1:22: 'run.seed' must be a whole number")));
}

TEST_F(Overrides, ARecipeOfAnOverrideTakesTheFilesModifiersBack) {
  const std::string recipe =
      written("r.yaml",
              "version: 1.0.0\nmodifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: "
              "1}\n  - !SetLearningRateModifier {start_epoch: 0, learning_rate: 0.5}\n");
  const std::string file =
      std::string(kFile) + "modifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: 3}\n";
  const std::string list = "modifiers=[!EpochRangeModifier {start_epoch: 0, end_epoch: 3}]";
  EXPECT_EQ(load({}, file).recipe.modifiers().size(), 1U);
  EXPECT_EQ(load({"recipe=" + recipe}, file).recipe.modifiers().size(), 2U);
  EXPECT_EQ(load({"modifiers=null", "recipe=" + recipe}, file).recipe.modifiers().size(), 2U);
  EXPECT_EQ(load({list}, std::string(kFile) + "recipe: " + recipe + "\n").recipe.modifiers().size(),
            1U);
  EXPECT_THAT(faults_of({"recipe=" + recipe, list}, file), HasSubstr("keep one of them"));
  const Environment weaker(Values{{"LOCKSTEP_RECIPE", recipe}});
  EXPECT_EQ(load({}, file).recipe.modifiers().size(), 2U);
  EXPECT_EQ(load({list}, file).recipe.modifiers().size(), 1U);
}

TEST_F(Overrides, NullTakesNothingElseBackAndAStageGoesWithItsRecipe) {
  const std::string inlined =
      "modifiers:\n  - !EpochRangeModifier {start_epoch: 0, end_epoch: 3}\n";
  EXPECT_EQ(load({"recipe=null"}, kFile + inlined).recipe.modifiers().size(), 1U);
  const std::string stages = written(
      "s.yaml",
      "a_stage:\n  some_modifiers:\n    - !EpochRangeModifier {start_epoch: 0, end_epoch: 2}\n");
  const std::string named = "recipe: " + stages + "\nrecipe_stage: a_stage\n";
  EXPECT_EQ(load({"modifiers=~"}, kFile + named).recipe.modifiers().size(), 1U);
  const std::string list = "modifiers=[!EpochRangeModifier {start_epoch: 0, end_epoch: 3}]";
  EXPECT_EQ(load({list}, kFile + named).recipe.modifiers().size(), 1U);
}

TEST_F(Overrides, AFileInOnePairOfBracesTakesThemToo) {
  const std::string file =
      "{run: {name: a}, data: {train: {type: digits}, global_batch_size: 8}, train: {max_steps: "
      "1}}";
  EXPECT_EQ(load({"run.seed=9", "model={type: mlp, layers: [64, 10]}"}, file).run.seed, 9);
  EXPECT_THAT(messages_of({"run.seed=x"}, file), ElementsAre(StartsWith("--set run.seed:1:1: ")));
}

TEST_F(Overrides, TheFilesPlacesStayRightBesideOverrides) {
  EXPECT_THAT(messages_of({"train.max_steps=4", "run.seed=5"},
                          "run: {name: a}\ndata:\n  train: {type: digitz}\n  global_batch_size: 8"),
              ElementsAre(StartsWith("run.yaml:3:17: 'data.train.type' must be one of")));
}

TEST_F(Overrides, TheEnvironmentIsReadByName) {
  const Environment values(Values{{"LOCKSTEP_RUN_SEED", "5"},
                                  {"LOCKSTEP_DATA_EVAL", "{type: random, shape: [4], classes: 3}"},
                                  {"LOCKSTEP_DATA_EVAL_SAMPLES", "7"},
                                  {"LOCKSTEP_MODEL_TYPE", "mlp"},
                                  {"LOCKSTEP_MODEL_LAYERS", "[64, 10]"}});
  const RunConfig config = load({"run.seed=6"});
  EXPECT_EQ(config.run.seed, 6) << "--set stands above";
  const auto eval = config.data.eval->make({});
  EXPECT_EQ(eval->num_samples(), 7);
  EXPECT_EQ(eval->spec().num_classes, 3);
  const auto net = config.model.make({{64}, 10, 1});
  EXPECT_EQ(net->params()[0].tensor.sizes(), (std::vector<int64_t>{10, 64}));
  EXPECT_THAT(config.warnings, IsEmpty());
}

TEST_F(Overrides, AMistypedVariableIsAWarning) {
  const Environment values(
      Values{{"LOCKSTEP_TRAIN_MAX_STPS", "5"}, {"LOCKSTEP_OPTIMIZER_LR", "5"}});
  const RunConfig config = load({});
  EXPECT_THAT(config.warnings,
              ElementsAre("LOCKSTEP_OPTIMIZER_LR in the environment is not a key of the run file "
                          "and is ignored (did you mean LOCKSTEP_OPTIMIZER_LEARNING_RATE?)",
                          "LOCKSTEP_TRAIN_MAX_STPS in the environment is not a key of the run file "
                          "and is ignored (did you mean LOCKSTEP_TRAIN_MAX_STEPS?)"));
}

TEST_F(Overrides, VariablesOfAnImageOrOfTheProjectAreNone) {
  const Environment values(Values{{"LOCKSTEP_VERSION", "0.1.0"},
                                  {"LOCKSTEP_CUDA", "off"},
                                  {"LOCKSTEP_FLIPS", "10"},
                                  {"LOCKSTEP_REQUIRE_ORACLES", "ON"},
                                  {"LOCKSTEP_TEST_STEP", "3"}});
  EXPECT_THAT(load({}).warnings, IsEmpty());
}

TEST(KeyNames, NoTwoKeysShareAVariable) {
  std::map<std::string, std::string> seen;
  for (const FieldDoc& field : run_file_fields()) {
    const auto [other, is_new] = seen.emplace(variable_name(field.path), field.path);
    EXPECT_TRUE(is_new) << field.path << " and " << other->second;
  }
}

TEST(KeyNames, TheReferenceHoldsTheKeysOfEveryType) {
  std::vector<std::string> paths;
  for (const FieldDoc& field : run_file_fields()) paths.push_back(field.path);
  for (const char* path :
       {"data.eval.shape", "data.eval.classes", "data.eval.samples", "data.eval.seed",
        "data.train.split", "data.eval.split", "model.layers", "model.channels",
        "optimizer.momentum", "optimizer.adam_beta1", "optimizer.staircase", "optimizer.power"})
    EXPECT_THAT(paths, Contains(path));
}

}  // namespace overrides_test
}  // namespace lockstep::daemon
