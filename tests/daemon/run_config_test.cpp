#include "daemon/config/run_config.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "daemon/config/checkpoint_metadata.h"
#include "daemon/run/check.h"
#include "daemon/run/training_context.h"
#include "dist/communicator.h"
#include "support/temporary_folder.h"

namespace lockstep::daemon {
namespace run_config_test {

using ::testing::Contains;
using ::testing::HasSubstr;

const std::string kDigits = LOCKSTEP_SOURCE_DIR "/configs/digits.yaml";

RunConfig load(const std::vector<std::string>& sets = {}) {
  std::vector<Override> overrides;
  for (const std::string& text : sets) overrides.push_back(parse_set(text));
  Diagnostics faults;
  RunConfig config = load_run_config(kDigits, overrides, &faults);
  faults.throw_if_any("test");
  return config;
}

TEST(RunConfig, ReadsEverySection) {
  const RunConfig config = load();
  EXPECT_EQ(config.run.name, "digits");
  EXPECT_EQ(config.run.project_dir, "runs/digits");
  EXPECT_EQ(config.model.type, "digits_net");
  EXPECT_EQ(config.data.global_batch_size, 64);
  EXPECT_EQ(config.optimizer.momentum, 0.9);
  EXPECT_EQ(config.checkpoint.save_checkpoints_steps, 200);
  EXPECT_EQ(config.recipe.modifiers().size(), 3U);
}

TEST(RunConfig, OverridesStandAboveEnvironmentAboveFile) {
  ::setenv("LOCKSTEP_RUN_SEED", "5", 1);
  ::setenv("LOCKSTEP_OPTIMIZER_LEARNING_RATE", "0.5", 1);
  const RunConfig config = load({"optimizer.learning_rate=0.25",
                                 "model={type: mlp, layers: [64, 10]}", "eval.every_epochs=0"});
  ::unsetenv("LOCKSTEP_RUN_SEED");
  ::unsetenv("LOCKSTEP_OPTIMIZER_LEARNING_RATE");
  EXPECT_EQ(config.run.seed, 5);
  EXPECT_EQ(config.optimizer.learning_rate, 0.25);
  const auto net = config.model.make({{64}, 10, 1});
  EXPECT_EQ(net->params()[0].tensor.sizes(), (std::vector<int64_t>{10, 64}));
}

std::string faults_with(const std::string& set) {
  Diagnostics faults;
  (void)load_run_config(kDigits, {parse_set(set)}, &faults);
  return faults.text();
}

TEST(RunConfig, CountsThatWouldOverflowLaterAreRefused) {
  const std::string random = "data.train={type: random, ";
  for (const std::string& set :
       {std::string("data.global_batch_size=9223372036854775807"),
        std::string("data={train: {type: digits}, batch_size_per_rank: 1000000001}"),
        std::string("train.max_steps=9223372036854775807"),
        std::string("train.max_epochs=9223372036854775807"),
        std::string("train.max_nonfinite_steps=1000000001"),
        std::string("train.replicas_to_aggregate=1000001"), std::string("run.threads=1025"),
        std::string("eval.every_epochs=1000000001"), std::string("eval.batch_size=1000000001"),
        std::string("checkpoint.save_checkpoints_steps=9223372036854775807"),
        std::string("summary.log_every=1000000001"),
        std::string("summary.save_summary_steps=1000000001"),
        std::string("model={type: mlp, layers: [64, 1000001, 10]}"),
        random + "samples: 1000000001}", random + "classes: 1000001}",
        random + "shape: [1000000001]}"})
    EXPECT_THAT(faults_with(set), HasSubstr("it must be ")) << set;
  EXPECT_THAT(faults_with(random + "shape: [1000000000, 1000000000, 1000000000]}"),
              HasSubstr("numbers, at most 1e+10 fit in memory"));
  EXPECT_EQ(load({"train.max_steps=1000000000"}).train.max_steps, 1'000'000'000);
}

TEST(RunConfig, WhatMeansNothingIsRefused) {
  EXPECT_THAT(faults_with("optimizer={type: adam, opt_epsilon: 1e-300}"),
              HasSubstr("'optimizer.opt_epsilon' is 1e-300, it must be >= 1.2e-38"));
  EXPECT_THAT(faults_with("optimizer={type: adagrad, adagrad_initial_accumulator_value: 1e-46}"),
              HasSubstr("it must be >= 1.2e-38"));
  EXPECT_EQ(load({"optimizer={type: adam, opt_epsilon: 1e-30}"}).optimizer.opt_epsilon, 1e-30);
  EXPECT_THAT(faults_with("checkpoint.warm_start_ckpt=''"),
              HasSubstr("'checkpoint.warm_start_ckpt' is empty"));
}

TEST(RunConfig, ASocketNameThatTheRunCouldNotUseIsRefused) {
  EXPECT_NO_THROW(load({"control.listen=unix:some/folder/" + std::string(80, 'x')}));
  EXPECT_THAT(faults_with("control.listen=unix:some/folder/" + std::string(81, 'x')),
              HasSubstr("is too long for a socket; choose one of at most 80 bytes"));
}

TEST(RunConfig, WhatGpusCannotExchangeIsRefused) {
  const auto faults_of = [](const std::string& device, const std::string& sync) {
    Diagnostics faults;
    (void)load_run_config(kDigits, {parse_set("run.device=" + device), parse_set("sync=" + sync)},
                          &faults);
    return faults.text();
  };
  EXPECT_THAT(faults_of("cuda", "{overlap: true, comm_dtype: bf16}"),
              HasSubstr("sync.overlap: true on GPUs needs unsharded gradients"));
  EXPECT_THAT(faults_of("cuda", "{sparse_allreduce: always, shard_optimizer: true}"),
              HasSubstr("sync.sparse_allreduce: always on GPUs needs"));
  EXPECT_THAT(faults_of("cuda", "{overlap: true}"), HasSubstr("0 errors"));
  EXPECT_THAT(faults_of("cpu", "{overlap: true, comm_dtype: bf16, shard_optimizer: true}"),
              HasSubstr("0 errors"));
}

TEST(RunConfig, ANullDataSetMeansNoEvaluation) {
  EXPECT_TRUE(load().data.eval.has_value());
  EXPECT_FALSE(load({"data.eval=null"}).data.eval.has_value());
  EXPECT_FALSE(load({"data={train: {type: digits}, global_batch_size: 64}"}).data.eval.has_value());
}

TEST(RunConfig, DebugStandsAboveOrderAndKernels) {
  EXPECT_TRUE(load().data.shuffle);
  const RunConfig debug = load({"run.debug=true", "data.shuffle=true"});
  EXPECT_FALSE(debug.data.shuffle);
  EXPECT_EQ(debug.run.deterministic, "true");
  EXPECT_THAT(debug.warnings, Contains(HasSubstr("run.debug")));
  EXPECT_EQ(load({"run.debug=true", "run.deterministic=elastic"}).run.deterministic, "elastic");
}

TEST(RunConfig, TheNameIsAFolderOfItsOwn) {
  for (const char* name : {".", "..", "a/b"})
    EXPECT_THAT(faults_with(std::string("run.name='") + name + "'"), HasSubstr("must not"));
  EXPECT_THAT(faults_with("run.name=''"), HasSubstr("'run.name' is empty"));
  EXPECT_EQ(load({"run.name=..a"}).run.project_dir, "runs/..a");
}

TEST(RunConfig, DigestsFollowSettingsNotTheirOrder) {
  EXPECT_EQ(load().digest(), load().digest());
  EXPECT_NE(load().digest(), load({"run.seed=18"}).digest());
  EXPECT_THAT(load().settings, Contains("optimizer.learning_rate=0.1"));
}

TEST(RunConfig, EveryKeyIsListedWithItsMeaning) {
  std::vector<std::string> paths;
  for (const FieldDoc& field : run_file_fields()) {
    paths.push_back(field.path);
    EXPECT_FALSE(field.help.empty()) << field.path;
  }
  for (const char* path :
       {"run.name", "model.layers", "data.train.samples", "data.global_batch_size",
        "optimizer.adam_beta1", "optimizer.nesterov", "sync.bucket_bytes", "checkpoint.prefix",
        "metrics.listen", "summary.log_every"})
    EXPECT_THAT(paths, Contains(path));
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(std::adjacent_find(paths.begin(), paths.end()), paths.end()) << "a key is listed twice";
}

TEST(TrainingContext, CapsTheRecipeByStepsAndEpochs) {
  dist::SelfCommunicator alone;
  const auto total = [&](const std::vector<std::string>& sets) {
    const RunConfig config = load(sets);
    return TrainingContext(config, alone, alone, alone).total_steps();
  };
  EXPECT_EQ(total({}), 690);
  EXPECT_EQ(total({"train.max_steps=100"}), 100);
  EXPECT_EQ(total({"train.max_epochs=3"}), 69);
  EXPECT_EQ(total({"train.max_steps=10000"}), 690);
}

TEST(TrainingContext, ASaveHoldsEveryPartUnderItsName) {
  dist::SelfCommunicator alone;
  const RunConfig config = load();
  TrainingContext context(config, alone, alone, alone);
  std::vector<std::string> keys;
  for (const StateEntry& entry : context.state()) keys.push_back(entry.key);
  for (const char* key : {"model/blocks/0/conv/weight", "optimizer/blocks/0/conv/weight/momentum",
                          "optimizer/iterations", "_lockstep/masks/blocks/0/conv/weight",
                          "_lockstep/step", "_lockstep/sampler/position", "_lockstep/random/seed"})
    EXPECT_THAT(keys, Contains(key));
}

TEST(CheckpointMetadata, NameWhatChangedSinceTheSave) {
  const CheckpointMetadata before{
      .seed = 17, .global_batch_size = 64, .steps_per_epoch = 23, .data_sha256 = "a"};
  EXPECT_NO_THROW(require_compatible(before, before));
  CheckpointMetadata after = before;
  after.global_batch_size = 32;
  after.data_sha256 = "b";
  try {
    require_compatible(before, after);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("the global batch was 64 and is now 32"));
    EXPECT_THAT(error.what(), HasSubstr("training data's sha256 was a and is now b"));
  }
}

TEST(Commands, PlanTakesARunFileOrABareRecipe) {
  const tests::TemporaryFolder folder;
  const std::string recipe = LOCKSTEP_SOURCE_DIR "/configs/recipes/digits_prune.yaml";
  const std::string svg = (folder.path() / "plan.svg").string();
  EXPECT_THAT(plan_command({.file = kDigits, .svg_file = svg}).text,
              HasSubstr("GradualKSModifier"));
  EXPECT_THAT(files::read(svg), HasSubstr("</svg>"));
  EXPECT_THAT(plan_command({.file = recipe, .steps_per_epoch = 23}).text, HasSubstr("690"));
  EXPECT_THROW((void)plan_command({.file = recipe}), Error);
}

}  // namespace run_config_test
}  // namespace lockstep::daemon
