#include "train/run_saves.h"

#include <condition_variable>
#include <mutex>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/save/checkpoint_folder.h"
#include "dist/communicator.h"
#include "recal/recipe/recipe_reader.h"
#include "recal/scheduled_modifier_manager.h"
#include "support/temporary_folder.h"

namespace lockstep::train {
namespace run_saves_test {

using ::testing::ElementsAre;

/// A door that a save waits at.
class Door {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }
  void set(bool open) {
    {
      const std::lock_guard lock(mutex_);
      open_ = open;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
};

/// The saves of a run of one rank, without a run: the test says what the steps bring.
struct SavedRun {
  SavedRun() = default;
  /// A run that resumes from the save of `step`, in a folder whose best save is `best`.
  SavedRun(const checkpoint::BestSave& best, int64_t step)
      : best_before(best), clock{.step = step} {}
  void evaluated(int64_t step, double accuracy) {
    clock.step = step;
    saves.evaluated({.loss = 0, .accuracy = accuracy, .num_samples = 1});
  }
  std::vector<int64_t> numbers() const {
    std::vector<int64_t> found;
    for (const auto& save : checkpoint::find_saves(folder.path())) found.push_back(save.number);
    return found;
  }

  const tests::TemporaryFolder folder;
  const std::string prefix = (folder.path() / "model.ckpt").string();
  const std::optional<checkpoint::BestSave> best_before;
  Door door;
  dist::SelfCommunicator alone;
  checkpoint::CheckpointOptions options;
  checkpoint::Saver saver{{.prefix = prefix,
                           .keep_checkpoint_max = 1,
                           .at_phase =
                               [this](checkpoint::SavePhase phase) {
                                 if (phase == checkpoint::SavePhase::kShardWritten) door.wait();
                               }},
                          alone};
  checkpoint::SaveSchedule schedule{options, alone};
  const at::Tensor weight = at::ones({3});
  StateSource state = [this] { return StateList{{.key = "model/w", .tensor = weight}}; };
  ReplicaCheck replica_check{alone, state, 0};
  ParamTable params{{.name = "w", .tensor = at::zeros({2, 2}).requires_grad_()}};
  recal::ScheduledModifierManager recipe{no_modifiers()};
  metrics::TrainingMetrics metrics{metrics::RunFacts{}};
  metrics::Health health;
  Recorder recorder{{.is_root = false, .total_steps = 10}, attached(), metrics, health};
  StepClock clock;
  RunSaves saves{{.saver = saver,
                  .schedule = schedule,
                  .options = best_options(),
                  .replica_check = replica_check,
                  .state = state,
                  .prefix = prefix,
                  .recorder = recorder,
                  .control = alone,
                  .clock = clock}};

 private:
  static recal::Recipe no_modifiers() {
    Diagnostics faults;
    return recal::parse_recipe("test.yaml", "version: 1.0.0\nmodifiers: []\n", &faults);
  }
  const recal::ScheduledModifierManager& attached() {
    Diagnostics faults;
    recipe.attach(params, {}, &faults);
    return recipe;
  }
  const checkpoint::CheckpointOptions& best_options() {
    options.keep_best = "eval.accuracy";
    if (best_before) checkpoint::write_best(prefix, *best_before);
    return options;
  }
};

TEST(RunSaves, AnEvaluationIsComparedWithTheBestThoughItsSaveIsStillBeingWritten) {
  SavedRun run;
  run.evaluated(1, 0.5);
  run.saves.settle();
  run.door.set(false);
  run.evaluated(2, 0.9);  // its save is held up until somebody waits for it
  run.saver.set_while_waiting([&] { run.door.set(true); });
  ASSERT_TRUE(run.saver.is_under_way());
  run.evaluated(3, 0.7);  // better than 1, not than 2
  run.saves.settle();
  const auto best = checkpoint::read_best(run.prefix);
  ASSERT_TRUE(best);
  EXPECT_EQ(best->number, 2);
  EXPECT_EQ(best->value, 0.9);
  for (const int64_t step : {4, 5}) {
    run.clock.step = step;
    EXPECT_TRUE(run.saves.save_now());
  }
  EXPECT_THAT(run.numbers(), ElementsAre(2, 5)) << "the best stays beside the newest";
}

TEST(RunSaves, ABestSaveThatFailsIsNotNamed) {
  SavedRun run;
  run.evaluated(1, 0.5);
  run.saves.settle();
  run.saver.set_at_phase([](checkpoint::SavePhase phase) {
    if (phase == checkpoint::SavePhase::kShardWritten)
      throw Error(ExitCode::kIo, "files", "no space left");
  });
  run.evaluated(2, 0.9);
  run.saves.settle();
  EXPECT_EQ(checkpoint::read_best(run.prefix)->number, 1);
  run.saver.set_at_phase({});
  run.evaluated(3, 0.7);
  run.saves.settle();
  EXPECT_EQ(checkpoint::read_best(run.prefix)->number, 3) << "the best of what is saved";
}

/// A run that resumes from an older save repeats the later ones: so train/evals.csv has it, too.
TEST(RunSaves, ABestSaveBehindTheRestoredStepIsNotToBeBeaten) {
  for (const int64_t restored : {1, 2}) {
    SavedRun run({.number = 2, .metric = "eval.accuracy", .value = 0.9}, restored);
    run.evaluated(3, 0.7);
    run.saves.settle();
    EXPECT_EQ(checkpoint::read_best(run.prefix)->number, restored == 1 ? 3 : 2);
  }
}

/// The disk may hang: a callback that throws ends the wait, not the save.
TEST(RunSaves, WhoWaitsForASaveLooksAroundMeanwhile) {
  SavedRun run;
  run.door.set(false);
  run.clock.step = 1;
  run.saves.begin();
  run.saver.set_while_waiting([] { throw Error(ExitCode::kStopped, "train", "told to end"); });
  EXPECT_THROW(run.saves.settle(), Error);
  EXPECT_TRUE(run.saver.is_under_way());
  int num_looks = 0;
  run.saver.set_while_waiting([&] {
    if (++num_looks == 2) run.door.set(true);
  });
  run.saves.settle();
  EXPECT_GE(num_looks, 2);
  EXPECT_EQ(run.saves.last_saved_step(), 1);
}

}  // namespace run_saves_test
}  // namespace lockstep::train
