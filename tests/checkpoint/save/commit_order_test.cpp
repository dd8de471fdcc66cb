// A process killed at any point of a save leaves the save before it readable, or the new one whole.
#include <chrono>
#include <csignal>
#include <functional>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/folder_lock.h"
#include "checkpoint/restore.h"
#include "checkpoint/tools/gc.h"
#include "checkpoint/tools/inspect.h"
#include "dist/communicator.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace commit_order_test {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::Not;
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

/// Calls check(folder, value) after each kill of a save that replaces the only one, 4, by value 2.
/// `value` is the one that must survive.
template <typename Check>
void for_each_killed_replacement(const Check& check) {
  for (const KillPoint point : kill_points()) {
    SCOPED_TRACE(fmt::format("phase {}, rank {}", static_cast<int>(point.phase), point.rank));
    TemporaryFolder folder;
    tests::save_small({.prefix = folder.prefix()}, 4, 2);
    save_and_die(folder, 4, point);
    check(folder, int64_t{point.phase < SavePhase::kOldRemoved ? 4 : 2});
  }
}

TEST(CommitOrder, GarbageCollectionFinishesAKilledReplacement) {
  for_each_killed_replacement([](const TemporaryFolder& folder, int64_t value) {
    const std::vector<std::string> before = files::list(folder.path());
    GcOptions options{.keep = 1, .dry_run = true, .json = true};
    const auto would = nlohmann::json::parse(collect_garbage(folder.path(), options).text);
    EXPECT_EQ(files::list(folder.path()), before) << "a dry run changes nothing";
    options.dry_run = false;
    const auto done = nlohmann::json::parse(collect_garbage(folder.path(), options).text);
    EXPECT_EQ(done["removed"], would["removed"]);
    EXPECT_EQ(done["saves"], nlohmann::json::array({folder.prefix() + "-4"}));
    EXPECT_THAT(verify(folder.prefix() + "-4"), IsEmpty());
    EXPECT_EQ(restored_value(folder), value);
    EXPECT_THAT(files::list(folder.path()), Each(Not(EndsWith(".tmp"))));
  });
}

TEST(CommitOrder, WhoeverLooksForASaveFinishesAKilledReplacement) {
  using Look = std::function<void(const TemporaryFolder&)>;
  const std::vector<Look> looks = {
      [](const TemporaryFolder& folder) { (void)latest_checkpoint(folder.path()); },
      [](const TemporaryFolder& folder) { (void)save_at(folder.path()); },
      [](const TemporaryFolder& folder) { (void)list_saves(folder.path(), {}); },
      [](const TemporaryFolder& folder) { (void)verify_saves(folder.path(), {}); }};
  for (const Look& look : looks)
    for_each_killed_replacement([&](const TemporaryFolder& folder, int64_t value) {
      look(folder);
      EXPECT_EQ(find_saves(folder.path()).size(), 1U);
      EXPECT_EQ(restored_value(folder), value);
    });
}

TEST(CommitOrder, ASaveThatRestoredNothingKeepsAKilledReplacementAndTakesAHigherNumber) {
  for_each_killed_replacement([](const TemporaryFolder& folder, int64_t value) {
    lockstep::tests::run_ranks(1, [&](dist::Communicator& control) {
      SmallState fresh(1);
      Saver saver({.prefix = folder.prefix()}, control);
      EXPECT_EQ(saver.save_as_next(fresh.list(), 0).number, 5);
    });
    SmallState state(0);
    restore(folder.prefix() + "-4", state.list());
    EXPECT_TRUE(state == SmallState(value));
    EXPECT_THAT(files::list(folder.path()), Each(Not(EndsWith(".tmp"))));
  });
}

class KilledReplacement : public ::testing::Test {
 protected:
  void SetUp() override {
    tests::save_small({.prefix = folder_.prefix()}, 4, 2);
    save_and_die(folder_, 4, {SavePhase::kOldRemoved, 0});
  }

  const TemporaryFolder folder_;
  const std::string journal_ = folder_ / "model.ckpt.saving",
                    shard_ = folder_ / "model.ckpt-4.data-00001-of-00002.tmp",
                    save_ = folder_.prefix() + "-4";
};

TEST_F(KilledReplacement, ThatLacksAShardIsNotFinishedAndIsGarbage) {
  files::remove_file(shard_);
  EXPECT_THROW(restored_value(folder_), Error);
  EXPECT_FALSE(std::filesystem::exists(save_ + ".index"));
  collect_garbage(folder_.path(), {});
  EXPECT_THAT(files::list(folder_.path()), ElementsAre("checkpoint"));
}

TEST_F(KilledReplacement, IsFinishedWithoutItsJournalAndWithADamagedStateFile) {
  files::remove_file(journal_);  // not synced, so a power loss may take it
  tests::put_bytes(folder_ / "checkpoint", "model_checkpoint_path");
  EXPECT_EQ(latest_checkpoint(folder_.path()), save_);
  EXPECT_EQ(restored_value(folder_), 2);
  EXPECT_FALSE(std::filesystem::exists(journal_));
}

TEST_F(KilledReplacement, IsNoGarbageBesideAnEmptyStateFile) {
  tests::put_bytes(folder_ / "checkpoint", "");
  collect_garbage(folder_.path(), {.keep = 1});
  EXPECT_EQ(restored_value(folder_), 2);
}

TEST_F(KilledReplacement, StaysAsItIsInADryRunBesideAnotherPrefix) {
  const TemporaryFolder elsewhere;  // since a save here would finish the replacement
  tests::save_small({.prefix = elsewhere / "other.ckpt"}, 7);
  for (const char* name : {"other.ckpt-7.index", "other.ckpt-7.data-00000-of-00001"})
    std::filesystem::copy_file(elsewhere / name, folder_ / name);
  write_state_file(folder_.path(), {"other.ckpt-7", {"model.ckpt-4", "other.ckpt-7"}});
  const std::vector<std::string> before = files::list(folder_.path());
  collect_garbage(folder_.path(), {.keep = 1, .dry_run = true});
  EXPECT_EQ(files::list(folder_.path()), before);
}

TEST_F(KilledReplacement, ReplacesOldShardsThatWereNotRemovedYet) {
  tests::put_bytes(shard_.substr(0, shard_.size() - 4), "old");
  collect_garbage(folder_.path(), {});
  EXPECT_THAT(verify(save_), IsEmpty());
  EXPECT_EQ(restored_value(folder_), 2);
}

TEST_F(KilledReplacement, IsNoneIfTheStateFileNamesAnother) {
  write_state_file(folder_.path(), {"model.ckpt-3", {"model.ckpt-3"}});
  EXPECT_EQ(latest_checkpoint(folder_.path()), std::nullopt);
  collect_garbage(folder_.path(), {});
  EXPECT_THAT(files::list(folder_.path()), ElementsAre("checkpoint"));
}

TEST_F(KilledReplacement, OfAnotherHostStaysAloneForTenMinutes) {
  files::LockHolder elsewhere = files::LockHolder::self();
  elsewhere.host = "node7";
  elsewhere.boot = "another kernel";
  tests::put_bytes(journal_, "4\n" + elsewhere.file_text());
  EXPECT_EQ(latest_checkpoint(folder_.path()), std::nullopt);
  EXPECT_THROW(restored_value(folder_), Error) << "no fresh start";
  EXPECT_TRUE(std::filesystem::exists(journal_));
  EXPECT_TRUE(std::filesystem::exists(shard_));
  std::filesystem::last_write_time(
      journal_, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(restored_value(folder_), 2);
}

TEST_F(KilledReplacement, OfAnotherHostIsNoGarbage) {
  files::LockHolder elsewhere = files::LockHolder::self();
  elsewhere.host = "node7";
  elsewhere.boot = "another kernel";
  tests::put_bytes(journal_, "4\n" + elsewhere.file_text());
  collect_garbage(folder_.path(), {.keep = 1});
  EXPECT_TRUE(std::filesystem::exists(shard_));
  EXPECT_EQ(restored_value(folder_), 2);
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
