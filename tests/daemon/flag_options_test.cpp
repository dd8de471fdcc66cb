// Command lines of flags, as the Estimator framework takes them.
#include "daemon/config/preset.h"

#include <algorithm>
#include <iostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "daemon/flag_lines.h"

namespace lockstep::daemon {
namespace flag_options_test {

using flag_lines::fault_with_flags;
using flag_lines::load_with_flags;
using flag_lines::parse_flag_line;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

/// "path=value" of each override.
std::vector<std::string> parsed(const std::string& line) {
  std::vector<std::string> all;
  for (const Override& one : parse_flag_line(line)) all.push_back(one.path + "=" + one.value);
  return all;
}

std::string value_of(const RunConfig& config, const std::string& flag) {
  const auto found = config.flag_texts.find(flag);
  if (found == config.flag_texts.end()) return "no flag";
  return found->second.value_or("none");
}

TEST(FlagOptions, EveryFormOfAFlagIsTaken) {
  for (const char* line : {"--batch_size 64", "--batch_size=64"})
    EXPECT_THAT(parsed(line), Contains("data.batch_size_per_rank='64'")) << line;
  for (const char* line : {"--debug", "--debug=true", "--debug=True"})
    EXPECT_THAT(parsed(line), Contains("run.debug='true'")) << line;
  for (const char* line : {"--nodebug", "--debug=false"})
    EXPECT_THAT(parsed(line), Contains("run.debug='false'")) << line;
  EXPECT_THAT(parsed("--ftrl_learning_rate_power -0.25"),
              Contains("optimizer.ftrl_learning_rate_power='-0.25'"));
  EXPECT_THAT(parsed("--keep_checkpoint_max -1"), Contains("checkpoint.keep_checkpoint_max='-1'"));
  EXPECT_THAT(parsed("--eval_batches 7"), Contains("eval.eval_freq='7'"));
  EXPECT_THAT(parsed("--trainable_scopes head,blocks/1"),
              Contains("train.trainable_scopes='head,blocks/1'"));
  EXPECT_THAT(parsed("--model_dir=\"it's here\""), Contains("run.project_dir='it''s here'"));
}

TEST(FlagOptions, AFlagIsGivenOnceAndWithAValueOfItsKind) {
  const auto fault = [](const std::string& line) { return fault_with_flags(line); };
  EXPECT_THAT(fault("--batch_size 1 --batch_size=2"),
              HasSubstr("64 [usage] --batch_size is given 2 times (1, 2): give it once"));
  EXPECT_THAT(fault("--debug --nodebug"), HasSubstr("64 [usage] --debug is given 2 times"));
  EXPECT_THAT(fault("--eval_freq 1 --eval_batches 1"),
              HasSubstr("64 [usage] --eval_freq is given 2 times"));
  EXPECT_THAT(fault("--batch_size many"),
              HasSubstr("64 [usage] --batch_size takes a whole number, not 'many'"));
  EXPECT_THAT(fault("--adam_beta1 1e"),
              HasSubstr("64 [usage] --adam_beta1 takes a number, not '1e'"));
  EXPECT_THAT(fault("--debug=maybe"), HasSubstr("true or false, not 'maybe'"));
  EXPECT_THAT(
      fault("--nodebug=false"),
      HasSubstr("64 [usage] --nodebug takes no value, not 'false': it means --debug=false"));
  EXPECT_THAT(fault("--nosync_replicas --nosync_replicas"), HasSubstr("is given 2 times"));
}

TEST(FlagOptions, UnknownWordsAreNamedWithTheNearest) {
  CLI::App app{"", "lockstepd"};
  const FlagOptions table(&app);
  EXPECT_THROW(app.parse("--bacth_size=3 data/train-1.csv --zzz"), CLI::ExtrasError);
  EXPECT_THAT(unknown_words(app),
              AllOf(HasSubstr("unknown flag --bacth_size (did you mean '--batch_size'?)"),
                    HasSubstr("'data/train-1.csv' belongs to no flag; put a pattern in quotes"),
                    HasSubstr("unknown flag --zzz; flags of an estimator go after --")));
}

/// The two command lines that the Estimator framework documents.
TEST(FlagOptions, TheLocalCommandLineIsParsedAsWritten) {
  const RunConfig config = load_with_flags(
      "--batch_size 64 --train_steps 10000 --train_metadata data/train* --eval_metadata data/eval* "
      "--warm_start_ckpt pretrained/model.ckpt --model_dir ./models --learning_rate 0.00001 "
      "--eval_freq 10 --eval_throttle_secs 30");
  EXPECT_EQ(config.data.batch_size_per_rank, 64);
  EXPECT_EQ(config.train.max_steps, 10000);
  EXPECT_EQ(config.data.train.type, "files");
  ASSERT_TRUE(config.data.eval.has_value());
  EXPECT_EQ(config.data.eval->type, "files");
  EXPECT_THAT(config.settings,
              AllOf(Contains("data.train.path=data/train*"), Contains("data.eval.path=data/eval*"),
                    Contains("checkpoint.warm_start_ckpt=pretrained/model.ckpt"),
                    Contains("run.project_dir=./models")));
  EXPECT_EQ(config.run.name, "models");
  EXPECT_EQ(config.optimizer.learning_rate, 0.00001);
  EXPECT_EQ(value_of(config, "eval_freq"), "10");
  EXPECT_EQ(value_of(config, "eval_batches"), "10");
  EXPECT_EQ(value_of(config, "eval_throttle_secs"), "30");
  EXPECT_EQ(config.optimizer.decay.type, "exponential");  // the rest is the framework's default
  EXPECT_EQ(config.optimizer.weight_decay, 0.00004);
}

TEST(FlagOptions, TheClusterCommandLineIsParsedAsWritten) {
  const RunConfig config = load_with_flags(
      "--batch_size 128 --train_steps 1000 --train_metadata gs://bucket/data/train* "
      "--eval_metadata gs://bucket/data/eval* --warm_start_ckpt gs://bucket/model.ckpt "
      "--model_dir gs://bucket/models/ --learning_rate 0.00001 "
      "--eval_freq 10 --eval_throttle_secs 120");
  EXPECT_EQ(config.data.batch_size_per_rank, 128);
  EXPECT_EQ(config.train.max_steps, 1000);
  EXPECT_THAT(config.settings, AllOf(Contains("data.train.path=gs://bucket/data/train*"),
                                     Contains("data.eval.path=gs://bucket/data/eval*"),
                                     Contains("run.project_dir=gs://bucket/models/")));
  EXPECT_EQ(config.run.name, "models");
  EXPECT_EQ(config.optimizer.learning_rate, 0.00001);
  EXPECT_EQ(value_of(config, "warm_start_ckpt"), "gs://bucket/model.ckpt");
}

TEST(FlagOptions, ARunWithoutAFileSaysWhatItLacks) {
  EXPECT_EQ(fault_with_flags("--batch_size 1", "", {}),
            "64 [usage] without --config FILE a run also needs --model_dir FOLDER, and --model "
            "TYPE (resnet18, ...) or --estimator=LIB, and --train_metadata FILES");
  EXPECT_EQ(fault_with_flags("--model_dir a --train_metadata b", "", {}),
            "64 [usage] without --config FILE a run also needs --model TYPE (resnet18, ...) or "
            "--estimator=LIB");
  const std::string run = "--model_dir a --train_metadata b ";
  EXPECT_EQ(fault_with_flags(run), "no fault");
  EXPECT_THAT(fault_with_flags(run + "--save_checkpoints_steps 5 --save_checkpoints_secs 6"),
              AllOf(HasSubstr("78 "), HasSubstr("flag --save_checkpoints_secs:1:1: error: "),
                    HasSubstr("are both given: remove one")));
  EXPECT_THAT(fault_with_flags(run + "--image_size 0"),
              AllOf(HasSubstr("78 "), HasSubstr("flag --image_size:1:1: error: "),
                    HasSubstr("must be a whole number from 1 to 16384")));
  EXPECT_THAT(fault_with_flags(run + "--train_steps -1"),
              AllOf(HasSubstr("78 "), HasSubstr("flag --train_steps:1:1: error: ")));
}

}  // namespace flag_options_test
}  // namespace lockstep::daemon
