#include "checkpoint/checkpoint_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist/communicator.h"
#include "tests/support/thread_world.h"

namespace lockstep::checkpoint {
namespace checkpoint_options_test {

using ::testing::HasSubstr;

CheckpointOptions read(const std::string& text, std::string* faults_text) {
  Diagnostics faults;
  YamlDocument document = YamlDocument::parse("run.yaml", text, &faults);
  CheckpointOptions options =
      read_checkpoint_options(ConfigReader(document.root(), "checkpoint", document, &faults));
  *faults_text = faults.empty() ? "" : faults.text();
  return options;
}

TEST(CheckpointOptions, AreReadAndHaveDefaults) {
  std::string faults;
  CheckpointOptions options = read(
      "{prefix: m.ckpt, save_checkpoints_steps: 200, keep_checkpoint_max: -1, save_at_end: false}",
      &faults);
  EXPECT_EQ(faults, "");
  EXPECT_EQ(options.prefix, "m.ckpt");
  EXPECT_EQ(options.save_checkpoints_steps, 200);
  EXPECT_EQ(options.keep_checkpoint_max, -1);
  EXPECT_FALSE(options.save_at_end);
  options = read("{prefix: model.ckpt}", &faults);
  EXPECT_EQ(options.keep_checkpoint_max, 5);
  EXPECT_FALSE(options.save_checkpoints_secs);
}

TEST(CheckpointOptions, BadValuesAreFaultsWithTheirPlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{save_checkpoints_steps: 5, save_checkpoints_secs: 5}", "both given"},
      {"{keep_checkpoint_max: 0}", "would keep no checkpoint"},
      {"{keep_checkpoint_max: -2}", "run.yaml:1"},
      {"{save_checkpoints_steps: 0}", "run.yaml:1"},
      {"{prefix: a/b}", "is a file name"},
      {"{prefix: 'm*'}", "reads as a pattern"},
      {"{prefix: model.ckpt.index}", "ends in '.index'"},
      {"{prefix: model.ckpt.tmp}", "ends in '.tmp'"},
      {"{prefix: m.data-00000-of-00001}", "give 'm'"},
      {"{prefix: ''}", "is empty"},
      {"{save_checkpoint_steps: 5}", "did you mean"},
  };
  for (const auto& [text, expected] : cases) {
    std::string faults;
    read(text, &faults);
    EXPECT_THAT(faults, HasSubstr(expected)) << text;
  }
}

TEST(SaveSchedule, ByStepsIsAFunctionOfTheStep) {
  dist::SelfCommunicator control;
  CheckpointOptions options;
  options.save_checkpoints_steps = 3;
  SaveSchedule schedule(options, control);
  std::vector<int64_t> due;
  for (int64_t step = 0; step < 10; ++step)
    if (schedule.due_here(step)) due.push_back(step);
  EXPECT_EQ(due, (std::vector<int64_t>{3, 6, 9}));
}

TEST(SaveSchedule, BySecondsFollowsTheClockOfRankZero) {
  lockstep::tests::run_ranks(3, [](dist::Communicator& control) {
    double now_s = 0;
    SaveSchedule schedule(CheckpointOptions(), control,
                          [&] { return control.rank() == 0 ? now_s : 1e9 * now_s; });
    EXPECT_FALSE(schedule.due_here(1));
    now_s = 599.9;
    EXPECT_FALSE(schedule.due_here(2));
    now_s = 600;
    EXPECT_EQ(schedule.due_here(3), control.rank() == 0);
    schedule.saved();
    EXPECT_FALSE(schedule.due_here(4));
  });
}

}  // namespace checkpoint_options_test
}  // namespace lockstep::checkpoint
