// A process killed at any point of a save leaves the save before it readable, or the new one whole.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/restore.h"
#include "dist/communicator.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace commit_order_test {

using tests::SmallState;
using tests::TemporaryFolder;

struct KillPoint {
  SavePhase phase;
  int rank;
};

/// A process of two ranks that saves SmallState(2) as `number` and dies on the way, with no chance
/// to tidy up.
void save_and_die(const TemporaryFolder& folder, int64_t number, KillPoint point) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    lockstep::tests::run_ranks(2, [&](dist::Communicator& control) {
      SmallState state(2);
      Saver saver({.prefix = folder.prefix(),
                   .keep_checkpoint_max = 1,
                   .at_phase =
                       [&](SavePhase phase) {
                         if (phase == point.phase && control.rank() == point.rank) ::raise(SIGKILL);
                       }},
                  control);
      saver.save(state.list(), number);
    });
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the save was not killed";
}

std::vector<KillPoint> kill_points() {
  std::vector<KillPoint> points;
  for (const SavePhase phase :
       {SavePhase::kShardWritten, SavePhase::kEntriesAgreed, SavePhase::kShardRenamed})
    for (const int rank : {0, 1}) points.push_back({phase, rank});
  for (const SavePhase phase : {SavePhase::kIndexWritten, SavePhase::kOldRemoved,
                                SavePhase::kCommitted, SavePhase::kStateWritten, SavePhase::kDone})
    points.push_back({phase, 0});
  return points;
}

/// The values that a restart finds; 0 if it finds none.
int64_t restored_value(const TemporaryFolder& folder) {
  dist::SelfCommunicator control;
  SmallState state(0);
  const auto report = restore_latest(folder.path(), "model.ckpt", state.list(), control);
  if (!report) return 0;
  EXPECT_TRUE(state == SmallState(state.step)) << "a mixture of two saves";
  return state.step;
}

TEST(CommitOrder, AKilledSaveIsWholeOrNotThere) {
  for (const KillPoint point : kill_points()) {
    TemporaryFolder folder;
    tests::save_small({.prefix = folder.prefix()}, 1, 2);
    save_and_die(folder, 2, point);
    const bool committed = point.phase >= SavePhase::kCommitted;
    EXPECT_EQ(restored_value(folder), committed ? 2 : 1)
        << "phase " << static_cast<int>(point.phase);
    EXPECT_TRUE(tests::save_small({.prefix = folder.prefix()}, 3, 1).ok);
    EXPECT_EQ(restored_value(folder), 3);
    for (const std::string& name : files::list(folder.path()))
      EXPECT_FALSE(name.ends_with(".tmp")) << name;
  }
}

TEST(CommitOrder, TheFirstSaveKilledMeansNoSaveAtAll) {
  for (const KillPoint point : kill_points()) {
    TemporaryFolder folder;
    save_and_die(folder, 2, point);
    EXPECT_EQ(restored_value(folder), point.phase >= SavePhase::kCommitted ? 2 : 0);
  }
}

/// Returns the checkpoint that is found after save 4 was rewritten with value 2 above save 1.
int64_t value_after(KillPoint point) {
  if (point.phase < SavePhase::kOldRemoved) return 4;
  if (point.phase < SavePhase::kCommitted) return 1;
  return 2;
}

TEST(CommitOrder, RewritingANumberNeverGivesAMixture) {
  for (const KillPoint point : kill_points()) {
    TemporaryFolder folder;
    tests::save_small({.prefix = folder.prefix()}, 1, 2);
    tests::save_small({.prefix = folder.prefix()}, 4, 2);
    save_and_die(folder, 4, point);
    EXPECT_EQ(restored_value(folder), value_after(point))
        << "phase " << static_cast<int>(point.phase);
  }
}

TEST(CommitOrder, AKilledReplacementOfTheOnlySaveIsFinished) {
  for (const KillPoint point : kill_points()) {
    TemporaryFolder folder;
    tests::save_small({.prefix = folder.prefix()}, 4, 2);
    save_and_die(folder, 4, point);
    EXPECT_EQ(restored_value(folder), point.phase < SavePhase::kOldRemoved ? 4 : 2)
        << "phase " << static_cast<int>(point.phase);
    EXPECT_TRUE(tests::save_small({.prefix = folder.prefix()}, 5, 1).ok);
    EXPECT_EQ(restored_value(folder), 5);
    for (const std::string& name : files::list(folder.path()))
      EXPECT_FALSE(name.ends_with(".tmp")) << name;
  }
}

TEST(CommitOrder, AReplacementThatLacksAShardIsNotFinished) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 4, 2);
  save_and_die(folder, 4, {SavePhase::kOldRemoved, 0});
  files::remove_file(folder / "model.ckpt-4.data-00001-of-00002.tmp");
  EXPECT_THROW(restored_value(folder), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "model.ckpt-4.index"));
}

TEST(StateFile, IsTheOldOneOrTheNewOne) {
  TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 1, 2);
  const std::string before = tests::bytes_of(folder / "checkpoint");
  save_and_die(folder, 2, {SavePhase::kCommitted, 0});
  EXPECT_EQ(tests::bytes_of(folder / "checkpoint"), before);
}

}  // namespace commit_order_test
}  // namespace lockstep::checkpoint
