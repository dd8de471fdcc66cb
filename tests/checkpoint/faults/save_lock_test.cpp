// Programs that save under one prefix at the same time, and whose files a saver may remove.
#include "checkpoint/save/checkpoint_folder.h"

#include <csignal>
#include <functional>
#include <set>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/folder_lock.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/restore.h"
#include "checkpoint/tools/gc.h"
#include "dist/communicator.h"
#include "tests/checkpoint/faults/file_calls.h"
#include "tests/checkpoint/save_fixture.h"
#include "tests/support/require_oracle.h"

namespace lockstep::checkpoint {
namespace save_lock_test {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using tests::SmallState;
using tests::TemporaryFolder;

pid_t in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    body();
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    ::_exit(1);
  }
  ::_exit(0);
}

int status_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(SaveLock, TwoProgramsThatSaveTwoHundredRoundsUnderOnePrefixLoseNothing) {
  constexpr int kRounds = 200;
  if (std::filesystem::is_directory("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", 0);
  const TemporaryFolder folder;  // in memory: what counts is who does what, not the disk
  const auto saves = [&](int program) {
    at::Tensor value = at::zeros({3}, at::kLong);
    Checkpoint checkpoint({{"value", value}});
    for (int round = 0; round < kRounds; ++round) {
      value.fill_(1000 * program + round);
      checkpoint.save(folder.prefix());
    }
  };
  const pid_t one = in_child([&] { saves(1); }), other = in_child([&] { saves(2); });
  const pid_t collector = in_child([&] {
    while (find_saves(folder.path()).size() < 2 * kRounds) try {
        collect_garbage(folder.path(), {});
      } catch (const Error& fault) {
        if (fault.code() != ExitCode::kCannotCreate) throw;
      }
  });
  EXPECT_EQ(status_of(one), 0);
  EXPECT_EQ(status_of(other), 0);
  if (::testing::Test::HasFailure()) ::kill(collector, SIGKILL);
  EXPECT_EQ(status_of(collector), 0);
  std::multiset<int64_t> expected, found;
  const std::vector<SaveName> all = find_saves(folder.path(), "model.ckpt");
  ASSERT_EQ(all.size(), 2U * kRounds);
  for (int round = 0; round < kRounds; ++round) expected.insert({1000 + round, 2000 + round});
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].number, static_cast<int64_t>(i) + 1) << "no number is left out";
    EXPECT_THAT(verify(all[i].prefix), IsEmpty());
    at::Tensor value = at::zeros({3}, at::kLong);
    Checkpoint({{"value", value}}).restore(all[i].prefix).assert_consumed();
    found.insert(value[0].item<int64_t>());
  }
  EXPECT_EQ(found, expected);
  EXPECT_THAT(read_state_file(folder.path())->all, ::testing::SizeIs(2 * kRounds));
  for (const std::string& name : files::list(folder.path()))
    EXPECT_FALSE(name.ends_with(".tmp") || name.ends_with(".saving")) << name;
}

TEST(SaveLock, IsFreeAfterItsHolderWasKilledAndTellsWhatWasLeft) {
  const TemporaryFolder folder;
  const pid_t child = in_child([&] {
    SaveLock lock(folder.prefix(), 0);
    lock.note({7, 12});
    (void)::raise(SIGKILL);
  });
  EXPECT_TRUE(WIFSIGNALED(status_of(child)));
  SaveLock lock(folder.prefix(), 0);
  EXPECT_THAT(lock.interrupted(), ElementsAre(7, 12));
}

TEST(SaveLock, SaysWhoHoldsItWhereItStaysHeld) {
  const TemporaryFolder folder;
  SaveLock held(folder.prefix(), 0);
  held.note({3});
  try {
    const SaveLock second(folder.prefix(), 0.05);
    FAIL() << "two hold it";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kCannotCreate);
    EXPECT_THAT(fault.what(), HasSubstr("model.ckpt.saving: another program is still saving"));
    EXPECT_THAT(fault.what(), HasSubstr(fmt::format("pid {}", ::getpid())));
  }
  EXPECT_NO_THROW(SaveLock(folder / "other", 0));
}

TEST(SaveLock, LeavesNoFileBehindWhereAllIsInOrder) {
  const TemporaryFolder folder;
  {
    SaveLock lock(folder.prefix(), 0);
    lock.note({1});
    lock.done();
  }
  EXPECT_THAT(files::list(folder.path()), IsEmpty());
  { const SaveLock unused(folder.prefix(), 0); }
  EXPECT_THAT(files::list(folder.path()), IsEmpty());
}

TEST(SaveLock, ASaveThatCannotHaveItFailsAndLeavesTheOthersAlone) {
  const TemporaryFolder folder;
  const SaveLock held(folder.prefix(), 0);
  const SaveResult result =
      tests::save_small({.prefix = folder.prefix(), .lock_patience_s = 0.02}, 1, 2);
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.code, ExitCode::kCannotCreate);
  EXPECT_THAT(result.error, HasSubstr("another program is still saving"));
}

TEST(SaveLock, GarbageIsNotCollectedWhileAProgramSaves) {
  const TemporaryFolder folder;
  tests::put_bytes(folder / "model.ckpt-4.index.tmp", "being written");
  {
    const SaveLock held(folder.prefix(), 0);
    EXPECT_THROW(collect_garbage(folder.path(), {}), Error);
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "model.ckpt-4.index.tmp"));
  collect_garbage(folder.path(), {});
  EXPECT_THAT(files::list(folder.path()), IsEmpty());
}

TEST(OwnSaves, OthersOfThePrefixAndTheirTemporaryFilesStay) {
  const TemporaryFolder folder;
  const TemporaryFolder elsewhere;
  tests::save_small({.prefix = elsewhere.prefix()}, 2);
  for (const char* name : {"model.ckpt-2.index", "model.ckpt-2.data-00000-of-00001"})
    std::filesystem::copy_file(elsewhere / name, folder / name);
  const std::vector<std::string> others = {"model.ckpt-2.index",
                                           "model.ckpt-2.data-00000-of-00001",
                                           "model.ckpt-9.index.tmp",
                                           "model.ckpt-3.data-00000-of-00001",
                                           "notes.txt",
                                           "model.ckpt-4.data-00001-of-00002.tmp"};
  for (size_t i = 2; i < others.size(); ++i) tests::put_bytes(folder / others[i], "not ours");
  for (int64_t step : {5, 6, 7, 8})
    EXPECT_TRUE(tests::save_small({.prefix = folder.prefix(), .keep_checkpoint_max = 2}, step).ok);
  const std::vector<std::string> names = files::list(folder.path());
  for (const std::string& name : others) EXPECT_THAT(names, Contains(name));
  EXPECT_THAT(names, Not(Contains("model.ckpt-6.index"))) << "of our own two stay";
  EXPECT_THAT(names, Contains("model.ckpt-7.index"));
  EXPECT_THAT(read_state_file(folder.path())->all, ElementsAre("model.ckpt-7", "model.ckpt-8"));
}

/// Saves as `number` on two ranks and is killed at a phase of rank 0.
void save_and_die(const TemporaryFolder& folder, int64_t number, SavePhase at) {
  const pid_t child = in_child([&] {
    lockstep::tests::run_ranks(2, [&](dist::Communicator& control) {
      SmallState state(number);
      Saver({.prefix = folder.prefix(),
             .keep_checkpoint_max = 2,
             .at_phase =
                 [&](SavePhase phase) {
                   if (phase == at && control.rank() == 0) (void)::raise(SIGKILL);
                 }},
            control)
          .save(state.list(), number);
    });
  });
  ASSERT_TRUE(WIFSIGNALED(status_of(child)));
}

TEST(OwnSaves, WhatAKilledSaveLeftGoesWithTheNextAndACommitThatNobodyNamedIsOwn) {
  for (const SavePhase at : {SavePhase::kStaged, SavePhase::kShardWritten, SavePhase::kIndexWritten,
                             SavePhase::kShardRenamed, SavePhase::kCommitted, SavePhase::kReadBack,
                             SavePhase::kStateWritten, SavePhase::kDone}) {
    const TemporaryFolder folder;
    for (const int64_t number : {1, 2})
      tests::save_small({.prefix = folder.prefix(), .keep_checkpoint_max = 2}, number, 2);
    save_and_die(folder, 3, at);
    for (const int64_t number : {4, 5})
      tests::save_small({.prefix = folder.prefix(), .keep_checkpoint_max = 2}, number, 1);
    EXPECT_THAT(files::list(folder.path()),
                ElementsAre("checkpoint", "model.ckpt-4.data-00000-of-00001", "model.ckpt-4.index",
                            "model.ckpt-5.data-00000-of-00001", "model.ckpt-5.index"))
        << "killed at phase " << static_cast<int>(at);
  }
}

/// Simulates a file system without locks.
TEST(OwnSaves, WithoutLocksAKilledReplacementIsNeitherRemovedNorFinished) {
  const TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 4, 2);
  save_and_die(folder, 4, SavePhase::kOldRemoved);
  {
    const tests::StruckCall no_locks("flock", folder.path(), 0, tests::Strike::kNoLocks);
    collect_garbage(folder.path(), {});
    EXPECT_EQ(latest_checkpoint(folder.path()), std::nullopt) << "its program may be alive";
  }
  EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-4");
}

TEST(OwnSaves, WhatCannotBeRemovedHindersNoSaveAndGoesOnceItCan) {
  const TemporaryFolder folder;
  const std::filesystem::path in_the_way = folder.path() / "model.ckpt-5.data-00001-of-00002.tmp";
  std::filesystem::create_directories(in_the_way / "x");
  EXPECT_FALSE(tests::save_small({.prefix = folder.prefix()}, 5, 2).ok);
  EXPECT_TRUE(tests::save_small({.prefix = folder.prefix()}, 6, 2).ok);
  EXPECT_TRUE(tests::save_small({.prefix = folder.prefix()}, 7, 2).ok);
  std::filesystem::remove_all(in_the_way);
  tests::put_bytes(in_the_way, "a file now");
  EXPECT_TRUE(tests::save_small({.prefix = folder.prefix()}, 8, 2).ok);
  EXPECT_FALSE(std::filesystem::exists(in_the_way));
  EXPECT_FALSE(std::filesystem::exists(folder / "model.ckpt.saving"));
}

#ifndef __SANITIZE_ADDRESS__  // which ends the program where there is no memory
TEST(OwnSaves, ASaveThatFailsBeforeItWritesKeepsTheJournalOfAKilledOne) {
  const TemporaryFolder folder;
  tests::save_small({.prefix = folder.prefix()}, 1);
  save_and_die(folder, 2, SavePhase::kShardWritten);
  const std::string left = folder / "model.ckpt-2.data-00000-of-00002.tmp";
  ASSERT_TRUE(std::filesystem::exists(left));
  dist::SelfCommunicator alone;
  // 4 PiB of one number: no memory to copy it to
  const StateList huge{
      {.key = "model/weight", .tensor = at::zeros({1}).expand({int64_t{1} << 50})}};
  const SaveResult result = Saver({.prefix = folder.prefix()}, alone).save(huge, 3);
  EXPECT_FALSE(result.ok);
  EXPECT_THAT(result.error, HasSubstr("to stage a checkpoint"));
  EXPECT_TRUE(std::filesystem::exists(left)) << "nobody has looked at it yet";
  tests::save_small({.prefix = folder.prefix()}, 4);
  EXPECT_FALSE(std::filesystem::exists(left)) << "forgotten by the failed save";
}
#endif

/// Runs as another user of a folder that all may write; the child's exit status.
int as_user(uid_t user, const std::function<void()>& body) {
  const pid_t child = in_child([&] {
    if (::setgroups(0, nullptr) != 0 || ::setresgid(user, user, user) != 0 ||
        ::setresuid(user, user, user) != 0)
      throw std::runtime_error("setresuid");
    body();
  });
  return status_of(child);
}

class TwoUsers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root may become other users";
    std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);
    const auto try_folder = [&] { ::_exit(::access(folder_.path().c_str(), W_OK) == 0 ? 0 : 1); };
    if (as_user(kOne, try_folder) != 0)
      LOCKSTEP_MISSING_ORACLE(folder_.path().string() +
                              ": a folder above lets no other user through");
  }

  static constexpr uid_t kOne = 54321, kOther = 54322;
  TemporaryFolder folder_;
};

TEST_F(TwoUsers, EachMaySaveAfterTheOther) {
  for (const uid_t user : {kOne, kOther, kOne})
    EXPECT_EQ(as_user(user,
                      [&] {
                        SaveLock lock(folder_.prefix(), 0);
                        lock.note({3});  // and is gone without a word
                        ::_exit(0);
                      }),
              0);
  EXPECT_EQ(as_user(kOther,
                    [&] {
                      SaveLock lock(folder_.prefix(), 0);
                      check(lock.interrupted() == std::set<int64_t>{3}, "the journal");
                      lock.done();
                    }),
            0);
  EXPECT_THAT(files::list(folder_.path()), IsEmpty());
}

TEST_F(TwoUsers, AJournalThatMayOnlyBeReadIsLockedAndReplaced) {
  const std::string path = folder_ / "model.ckpt.saving";
  EXPECT_EQ(as_user(kOne, [&] { tests::put_bytes(path, "7 12\n"); }), 0);
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  EXPECT_EQ(
      as_user(kOther,
              [&] {
                SaveLock lock(folder_.prefix(), 0);
                check(lock.is_held() && lock.interrupted() == std::set<int64_t>{7, 12}, "read");
                lock.note({13});
                ::_exit(0);
              }),
      0);
  const SaveLock lock(folder_.prefix(), 0);
  EXPECT_THAT(lock.interrupted(), ElementsAre(13));
  EXPECT_THAT(files::list(folder_.path()), ElementsAre("model.ckpt.saving"));
}

TEST_F(TwoUsers, WhoMayNotReadAKilledReplacementDoesNotTakeItForGarbage) {
  tests::save_small({.prefix = folder_.prefix()}, 4);
  for (const char* name : {"model.ckpt-4.index", "model.ckpt-4.data-00000-of-00001"}) {
    files::rename_file(folder_ / name, folder_ / (std::string(name) + ".tmp"));
    std::filesystem::permissions(folder_ / (std::string(name) + ".tmp"),
                                 std::filesystem::perms(0600));
  }
  EXPECT_EQ(as_user(kOne,
                    [&] {
                      const auto fault = fault_of([&] { (void)find_garbage(folder_.path(), {}); });
                      check(fault && fault->code() != ExitCode::kBadData, "refused");
                    }),
            0);
}

TEST_F(TwoUsers, OneWhoSavesIsWaitedForByTheOther) {
  const std::string path = folder_ / "model.ckpt.saving";
  const SaveLock held(folder_.prefix(), 0);
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  EXPECT_EQ(as_user(kOther,
                    [&] {
                      const auto fault = fault_of([&] { SaveLock(folder_.prefix(), 0.02); });
                      check(fault && fault->code() == ExitCode::kCannotCreate, "refused");
                      check(std::string(fault->what()).find("another program is still saving") !=
                                std::string::npos,
                            fault->what());
                    }),
            0);
}

TEST_F(TwoUsers, AJournalThatMayNotBeReadIsNamedWithItsOwner) {
  const std::string path = folder_ / "model.ckpt.saving";
  EXPECT_EQ(as_user(kOne, [&] { tests::put_bytes(path, "7\n"); }), 0);
  std::filesystem::permissions(path, std::filesystem::perms(0600));
  EXPECT_EQ(as_user(kOther,
                    [&] {
                      const auto fault = fault_of([&] { SaveLock(folder_.prefix(), 0); });
                      check(fault && fault->code() == ExitCode::kCannotCreate, "refused");
                      check(std::string(fault->what()).find("belongs to user 54321 (mode 0600)") !=
                                std::string::npos,
                            fault->what());
                    }),
            0);
}

/// A child that has no answer after this long spins or waits; it is ended by SIGALRM.
constexpr unsigned kNoAnswerS = 60;

TEST_F(TwoUsers, AFolderInWhichThisUserMayNotMakeFilesIsAnErrorAtOnce) {
  tests::save_small({.prefix = folder_.prefix()}, 1);
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  EXPECT_EQ(as_user(kOther,
                    [&] {
                      ::alarm(kNoAnswerS);
                      const auto fault = fault_of([&] { SaveLock(folder_.prefix(), 0); });
                      check(fault && fault->code() == ExitCode::kCannotCreate, "refused");
                      check(std::string(fault->what()).find("may not create files in") !=
                                std::string::npos,
                            fault->what());
                      const auto gc =
                          fault_of([&] { collect_garbage(folder_.path(), {.keep = 1}); });
                      check(gc && gc->code() == ExitCode::kCannotCreate, "gc is refused");
                    }),
            0);
}

TEST_F(TwoUsers, OnlyWhoMayWriteTheFolderMayOpenItsLock) {
  ::umask(0);  // as mpirun of some hosts
  for (const auto& [of_folder, of_file] :
       std::vector<std::pair<int, int>>{{0700, 0600}, {0755, 0600}, {0775, 0660}, {0777, 0666}}) {
    std::filesystem::permissions(folder_.path(), std::filesystem::perms(of_folder));
    const std::string path = folder_ / "model.ckpt.saving";
    tests::put_bytes(path, "");  // of an earlier version, which all might read
    const SaveLock held(folder_.prefix(), 0);
    EXPECT_EQ(static_cast<int>(std::filesystem::status(path).permissions()), of_file);
    EXPECT_EQ(as_user(kOther,
                      [&] {
                        const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
                        check((file >= 0) == (of_folder == 0777), "who may lock");
                      }),
              0);
  }
  ::umask(022);
}

TEST(SaveLock, IsNoLinkAndNoPipe) {
  const TemporaryFolder folder;
  const std::string path = folder / "model.ckpt.saving", target = folder / "of somebody";
  tests::put_bytes(target, "7\n");
  std::filesystem::create_symlink(target, path);
  EXPECT_EQ(fault_of([&] { SaveLock(folder.prefix(), 0); })->code(), ExitCode::kCannotCreate);
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(fault_of([&] { SaveLock(folder.prefix(), 0); })->code(), ExitCode::kCannotCreate);
  EXPECT_EQ(tests::bytes_of(target), "7\n");
}

TEST(SaveLock, WhatAnotherHostNotedAShortTimeAgoMayBeUnderWay) {
  using namespace std::chrono_literals;
  const TemporaryFolder folder;
  files::LockHolder elsewhere = files::LockHolder::self();
  elsewhere.host = "node7";
  elsewhere.boot = "another kernel";
  const std::string journal = folder / "model.ckpt.saving",
                    living = folder / "model.ckpt-7.data-00000-of-00001.tmp";
  for (const auto& [age, stays] : {std::pair(5s, true), std::pair(3600s, false)}) {
    tests::put_bytes(living, "being written");
    tests::put_bytes(journal, "7\n" + elsewhere.file_text());
    std::filesystem::last_write_time(journal, std::filesystem::file_time_type::clock::now() - age);
    EXPECT_TRUE(tests::save_small({.prefix = folder.prefix()}, 9).ok);
    EXPECT_EQ(std::filesystem::exists(living), stays);
  }
}

/// Simulates a file system without locks.
TEST(SaveLock, WithoutLocksGarbageLeavesWhatMayBeWritten) {
  const TemporaryFolder folder;
  for (const int64_t number : {1, 2}) tests::save_small({.prefix = folder.prefix()}, number);
  const std::vector<std::string> under_way = {
      "model.ckpt-3.index.tmp", "model.ckpt-3.data-00000-of-00001", "model.ckpt.saving"};
  for (const std::string& name : under_way) tests::put_bytes(folder / name, "3\n");
  {
    const tests::StruckCall no_locks("flock", folder.path(), 0, tests::Strike::kNoLocks);
    collect_garbage(folder.path(), {.keep = 1});
  }
  std::vector<std::string> names = files::list(folder.path());
  EXPECT_THAT(names, Not(Contains("model.ckpt-1.index"))) << "complete saves may go";
  for (const std::string& name : under_way) EXPECT_THAT(names, Contains(name));
  collect_garbage(folder.path(), {.keep = 1});  // with locks
  EXPECT_THAT(files::list(folder.path()),
              ElementsAre("checkpoint", "model.ckpt-2.data-00000-of-00001", "model.ckpt-2.index"));
}

TEST(SaveSpace, IsComparedWithWhatIsFreeAndWithNothingWhereNobodyKnows) {
  const std::uintmax_t kUnknown = static_cast<std::uintmax_t>(-1);
  constexpr int64_t kMiB = int64_t{1} << 20;  // for index and state file
  using Space = std::filesystem::space_info;
  EXPECT_NO_THROW(require_space("/f", 100, Space{1 << 30, 1 << 30, 100 + kMiB}));
  EXPECT_NO_THROW(require_space("/f", 100, Space{0, 0, 0})) << "as some file systems in user space";
  EXPECT_NO_THROW(require_space("/f", 100, Space{kUnknown, kUnknown, kUnknown}));
  EXPECT_NO_THROW(
      require_space("/f", int64_t{1} << 50, Space{kUnknown - 1, kUnknown - 1, kUnknown - 1}));
  try {
    require_space("/f", 100, Space{1 << 30, 1 << 30, 99 + kMiB});
    FAIL() << "one byte is lacking";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kIo);
    EXPECT_THAT(fault.what(),
                HasSubstr("/f: a checkpoint needs 1048676 bytes and 1048675 are free"));
  }
}

TEST(Files, NewFoldersAreDurableUpToTheFirstOneThatWasThere) {
  const TemporaryFolder folder;
  const tests::SyncedPaths synced;
  files::make_folders(folder.path() / "a/b/c");
  EXPECT_THAT(synced.paths(), ElementsAre(folder / "a/b", folder / "a", folder.path().string()));
  files::make_folders(folder.path() / "a/b/c");
  EXPECT_EQ(synced.paths().size(), 3U) << "nothing is new";
}

TEST(Files, AFileSystemThatDoesNotSyncFoldersIsNoFault) {
  const TemporaryFolder folder;
  {
    const tests::StruckCall strike("fsync", folder.path(), 0, tests::Strike::kInvalid);
    EXPECT_NO_THROW(files::sync_folder(folder.path()));
  }
  const tests::StruckCall strike("fsync", folder.path(), 0, tests::Strike::kIoError);
  EXPECT_THROW(files::sync_folder(folder.path()), Error);
}

}  // namespace save_lock_test
}  // namespace lockstep::checkpoint
