// preset: estimator, and flags above run files.
#include "daemon/config/preset.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/flag_lines.h"
#include "daemon/run/check.h"
#include "support/temporary_folder.h"

namespace lockstep::daemon {
namespace preset_test {

using flag_lines::fault_with_flags;
using flag_lines::load_with_flags;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kBase =
    "run: {name: p}\nmodel: {type: mlp, layers: [3, 4]}\n"
    "data: {train: {type: random, shape: [3], classes: 4, samples: 8}, global_batch_size: 4}\n";
const std::string kRun = kBase + "train: {max_steps: 1}\n";

class Preset : public ::testing::Test {
 protected:
  std::string file(const std::string& text) {
    const auto path = folder_.path() / "run.yaml";
    files::write_atomically(path, text);
    return path.string();
  }
  RunConfig load(const std::string& text, const std::string& flags = "") {
    return load_with_flags(flags, file(text), {});
  }
  std::string fault(const std::string& text, const std::string& flags = "") {
    return fault_with_flags(flags, file(text), {});
  }

  tests::TemporaryFolder folder_;
};

/// Flags whose key, or whose default, is not there.
std::set<std::string_view> unknown_flags() {
  std::set<std::string_view> unknown;
  const std::vector<FieldDoc> fields = run_file_fields();
  for (const Flag& flag : flag_table()) {
    const auto is_it = [&](const FieldDoc& field) {
      const auto& choices = field.choices;
      return field.path == flag.path &&
             (choices.empty() || flag.preset.empty() ||
              std::find(choices.begin(), choices.end(), flag.preset) != choices.end());
    };
    if (std::none_of(fields.begin(), fields.end(), is_it)) unknown.insert(flag.name);
  }
  return unknown;
}

TEST_F(Preset, TheTableHasTheFrameworksFlagsAndThreeOfGpusEachAKeyOfTheRunFile) {
  EXPECT_EQ(flag_table().size(), 42U);
  std::set<std::string_view> names;
  for (const Flag& flag : flag_table()) EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
  EXPECT_THAT(unknown_flags(), testing::IsEmpty());
}

TEST_F(Preset, GivesTheFrameworksDefaults) {
  const RunConfig config = load(kBase + "preset: estimator\n");
  for (const Flag& flag : flag_table()) {
    if (flag.name == "image_size" || flag.name == "batch_size" || flag.name == "eval_freq")
      continue;  // the run has no images, and a global batch
    const std::optional<std::string>& value = config.flag_texts.at(std::string(flag.name));
    EXPECT_EQ(flag.preset.empty() ? "" : value.value_or("none"), flag.preset) << flag.name;
  }
  EXPECT_EQ(config.train.max_steps, 20);
  EXPECT_EQ(config.optimizer.weight_decay, 0.00004);
  EXPECT_EQ(config.optimizer.decay.type, "exponential");
  EXPECT_THAT(config.notes, IsEmpty());
  EXPECT_THAT(config.settings, Contains("optimizer.weight_decay=0.00004"));  // compared over ranks
}

TEST_F(Preset, OtherFilesKeepTheirDefaults) {
  const RunConfig config = load(kRun, "--learning_rate 0.5");
  EXPECT_EQ(config.optimizer.learning_rate, 0.5);
  EXPECT_EQ(config.optimizer.decay.type, "fixed");
  EXPECT_EQ(config.optimizer.weight_decay, 0);
  EXPECT_EQ(config.flag_texts.at("weight_decay"), "0");
  EXPECT_THAT(fault(kRun + "preset: estimatr\n"), HasSubstr("did you mean 'estimator'?"));
}

TEST_F(Preset, StandsBelowTheFile) {
  const std::string preset = "preset: estimator\n";
  EXPECT_EQ(load(kRun + preset).train.max_steps, 1);
  EXPECT_EQ(load(kRun + preset).data.batch_size_per_rank, std::nullopt);  // the file has the other
  EXPECT_EQ(load(kBase + preset + "train: {max_epochs: 3}\n").train.max_steps, std::nullopt);
  EXPECT_EQ(load(kRun + preset + "optimizer: {weight_decay: null}\n").optimizer.weight_decay, 0);
  EXPECT_FALSE(load(kRun + preset + "checkpoint: off\n").checkpoint.enabled);
  EXPECT_EQ(load(kRun + preset).eval.batch_size, 256);
  EXPECT_EQ(load(kRun + preset).eval.eval_freq, std::nullopt);  // 5 batches of 1, or of 256?
  std::string per_rank = kRun + preset;
  per_rank.replace(per_rank.find("global_batch_size"), 17, "batch_size_per_rank");
  EXPECT_EQ(load(per_rank).eval.batch_size, 4);  // that of training
  EXPECT_EQ(load(per_rank, "--batch_size 32").eval.batch_size, 32);
  EXPECT_EQ(load(kRun + preset + "optimizer: {learning_rate: 0.5}\n", "--learning_rate 0.25")
                .optimizer.learning_rate,
            0.25);
}

TEST_F(Preset, EvaluatesInBatchesOfOneWhereNoBatchIsGiven) {
  std::string run = kRun + "preset: estimator\n";
  run.replace(run.find(", global_batch_size: 4"), 22, "");
  const RunConfig config = load(run);
  EXPECT_EQ(config.data.batch_size_per_rank, 1);
  EXPECT_EQ(config.eval.batch_size, 1);
  EXPECT_EQ(config.eval.eval_freq, 5);
  EXPECT_EQ(load(run + "eval: {batch_size: 7, eval_batches: 3}\n").eval.batch_size, 7);
  EXPECT_EQ(load(run + "eval: {batch_size: 7, eval_batches: 3}\n").eval.eval_freq, 3);
}

TEST_F(Preset, AFlagTakesBackTheOtherOfAPairThatTheFileHas) {
  const RunConfig batch = load(kRun, "--batch_size 3");
  EXPECT_EQ(batch.data.batch_size_per_rank, 3);
  EXPECT_EQ(batch.data.global_batch_size, std::nullopt);
  const std::string saves = kRun + "checkpoint: {save_checkpoints_steps: 5}\n";
  EXPECT_EQ(load(saves, "--save_checkpoints_secs 9").checkpoint.save_checkpoints_secs, 9);
  EXPECT_EQ(load(saves, "--save_checkpoints_secs 9").checkpoint.save_checkpoints_steps,
            std::nullopt);
  EXPECT_EQ(load(kRun + "eval: {eval_batches: 5}\n", "--eval_freq 9").eval.eval_freq, 9);
  const auto both = [&](const std::string& set) {
    return fault_with_flags("--batch_size 3", file(kRun), {set});
  };
  EXPECT_EQ(both("data.global_batch_size=null"), "no fault");
  EXPECT_THAT(both("data.global_batch_size=8"), HasSubstr("give exactly one of"));
}

TEST_F(Preset, FaultsNameWhereAValueComesFrom) {
  const std::string preset = kRun + "preset: estimator\n";
  EXPECT_THAT(fault(preset + "sync: {shard_optimizer: true}\n"),
              HasSubstr("'sync.sync_replicas: false' (preset: estimator) cannot be combined with "
                        "sync.shard_optimizer (line 6): "));
  EXPECT_THAT(fault(kRun + "eval: {eval_batches: 2, eval_freq: 3}\n"),
              HasSubstr("another name of 'eval.eval_freq' (line 5)"));
  EXPECT_EQ(load(preset, "--eval_freq 3").eval.eval_freq_origin, "flag --eval_freq");
}

TEST_F(Preset, ImagesHaveItsSizeWhereTheFileNamesNone) {
  const std::string images =
      "preset: estimator\nrun: {name: p}\ntrain: {max_steps: 1}\ndata:\n"
      "  train: {type: files, path: a.csv}\n";
  EXPECT_THAT(load(images).settings,
              AllOf(Contains("data.train.image_size=299"), Not(Contains(HasSubstr("data.eval")))));
  const RunConfig both = load(images + "  eval: {type: files, path: b.csv, image_size: 32}\n");
  EXPECT_THAT(both.settings,
              AllOf(Contains("data.train.image_size=299"), Contains("data.eval.image_size=32")));
  EXPECT_THAT(load(images + "  eval: {type: files, path: b.csv}\n", "--image_size 64").settings,
              AllOf(Contains("data.train.image_size=64"), Contains("data.eval.image_size=64")));
}

TEST_F(Preset, FlagsOfAnotherChoiceAreNotesInAFileOnlyWithThePreset) {
  const std::string momentum = "optimizer: {type: momentum, adam_beta1: 0.5}\n";
  EXPECT_THAT(fault(kRun + momentum), HasSubstr("unknown key 'adam_beta1' in 'optimizer'"));
  EXPECT_THAT(load(kRun + "preset: estimator\n" + momentum).notes,
              ElementsAre("line 6: 'optimizer.adam_beta1' has no effect with the other settings"));
  const RunConfig config = load(kRun + "optimizer: {type: momentum}\n", "--adam_beta1 0.5");
  EXPECT_THAT(
      config.notes,
      ElementsAre(
          "flag --adam_beta1: 'optimizer.adam_beta1' has no effect with the other settings"));
  EXPECT_EQ(config.flag_texts.at("adam_beta1"), "0.5");  // what was given is still to be read
  EXPECT_THAT(load(kRun + "optimizer: {type: adam}\n", "--adam_beta1 0.5").notes, IsEmpty());
  EXPECT_THAT(fault(kRun, "--adam_beta1 x"), HasSubstr("64 [usage] --adam_beta1 takes a number"));
  EXPECT_THAT(fault(kRun + "preset: estimator\noptimizer: {adam_beta9: 0.5}\n"),
              HasSubstr("unknown key 'adam_beta9'"));
}

TEST_F(Preset, ARecipeSaysHowLongAndWantsAFixedRate) {
  const std::string recipe =
      "modifiers:\n  - !SetLearningRateModifier {start_epoch: 0, learning_rate: 0.5}\n"
      "  - !EpochRangeModifier {start_epoch: 0, end_epoch: 2}\n";
  const RunConfig config = load(kBase + "preset: estimator\n" + recipe);
  EXPECT_EQ(config.train.max_steps, std::nullopt);  // the recipe says how long
  const auto fault_of_check = [&](const std::string& more) {
    try {
      return check_command(file(kBase + "preset: estimator\n" + recipe + more), {}).text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      return std::string(error.what());
    }
  };
  EXPECT_THAT(fault_of_check(""),
              AllOf(HasSubstr("run.yaml:6:"), HasSubstr("optimizer.learning_rate_decay_type: it is "
                                                        "exponential, it must be fixed")));
  EXPECT_THAT(fault_of_check("optimizer: {learning_rate_decay_type: fixed}\n"), HasSubstr("ok"));
}

/// The sections of an estimator's own data are there only once the run is complete.
TEST_F(Preset, AnImageSizeReachesTheDataOfAnEstimator) {
  Diagnostics faults;
  const RunConfig config =
      load_run_config("",
                      overrides_of({{"estimator.name=full"},
                                    LOCKSTEP_TEST_PLUGIN,
                                    {"--model_dir", "m", "--image_size", "32"}}),
                      &faults);
  EXPECT_TRUE(faults.empty());
  EXPECT_EQ(config.flag_texts.at("image_size"), "32");
}

TEST_F(Preset, FlagsBehindTheDashesAreTheTablesOrTheEstimators) {
  const auto load_words = [&](const std::vector<std::string>& words) {
    Diagnostics faults;
    RunConfig config = load_run_config(
        "",
        overrides_of(
            {{"estimator.name=full", "data.train={type: estimator}"}, LOCKSTEP_TEST_PLUGIN, words}),
        &faults);
    faults.throw_if_any("test");
    return config;
  };
  const RunConfig config = load_words(
      {"--samples", "12", "--model_dir", "m/", "--nodebug", "--batch_size=6", "--nodeep"});
  EXPECT_EQ(config.data.batch_size_per_rank, 6);
  EXPECT_EQ(config.run.name, "m");
  EXPECT_FALSE(config.run.debug);
  EXPECT_EQ(config.flag_texts.at("samples"), "12");
  EXPECT_EQ(config.flag_texts.at("deep"), "false");
  EXPECT_EQ(config.model.make({{3}, 4, 1})->params()[0].tensor.size(0), 4);  // not deep
  EXPECT_THROW((void)load_words({"--model_dir", "m", "--model_dir", "n"}), Error);
  EXPECT_THROW((void)load_words({"--model_dir", "m", "--bacth_size", "6"}), Error);
}

TEST_F(Preset, ValuesAreThoseOfKeysAndDefaults) {
  const RunConfig config =
      load(kRun, "--trainable_scopes linear/0 --warm_start_ckpt w --debug --momentum 0.5");
  EXPECT_EQ(config.flag_texts.at("trainable_scopes"), "linear/0");
  EXPECT_EQ(config.flag_texts.at("warm_start_ckpt"), "w");
  EXPECT_EQ(config.flag_texts.at("debug"), "true");
  EXPECT_EQ(config.flag_texts.at("momentum"), "0.5");
  EXPECT_EQ(config.flag_texts.at("model.layers"), "3,4");
  EXPECT_EQ(config.flag_texts.at("run.seed"), "17");
  EXPECT_EQ(config.flag_texts.at("save_checkpoints_steps"), std::nullopt);
  EXPECT_EQ(config.flag_texts.at("train_steps"), "1");
}

}  // namespace preset_test
}  // namespace lockstep::daemon
