#include "base/files/folder_lock.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "tests/support/patience.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::files {
namespace folder_lock_test {

using lockstep::tests::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr FolderLockTimes kQuick{
    .patience_s = 0.3, .heartbeat_s = 0.05, .heartbeat_patience_s = 0.6};
constexpr FolderLockTimes kNoFlock{
    .patience_s = 0.3, .heartbeat_s = 0.05, .heartbeat_patience_s = 0.6, .use_flock = false};

/// Seconds that count as "at once": callers that wait with kPatient wait longer.
constexpr double kAtOnce_s = 30;
constexpr FolderLockTimes kPatient{
    .patience_s = 10 * kAtOnce_s, .heartbeat_s = 0.05, .heartbeat_patience_s = 10 * kAtOnce_s};

/// A process that holds a folder until it is killed.
class Holder {
 public:
  Holder(const std::filesystem::path& folder, const FolderLockTimes& times) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const FolderLock lock(folder, times);
      (void)!::write(ends[1], "1", 1);
      for (;;) ::pause();
    }
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 1);  // it holds it now
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Holder() { kill_9(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  pid_t pid() const { return pid_; }
  void kill_9() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

std::string refusal_of(const std::filesystem::path& folder, const FolderLockTimes& times) {
  try {
    const FolderLock lock(folder, times);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kCannotCreate);
    return error.what();
  }
  return "";
}

/// Writes the lock file as a holder does: the file is never empty.
void write_holder(const std::filesystem::path& folder, const LockHolder& holder) {
  const std::string text = holder.file_text();
  const int file = ::open((folder / ".lock").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  EXPECT_EQ(::pwrite(file, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(::ftruncate(file, static_cast<off_t>(text.size())), 0);
  ::close(file);
}

LockHolder holder_elsewhere() {
  LockHolder holder = LockHolder::self();
  holder.host = "node7";
  holder.boot = "another kernel";
  return holder;
}

/// Both kinds of file systems.
class FolderLocks : public ::testing::TestWithParam<bool> {
 protected:
  FolderLockTimes times() const { return GetParam() ? kQuick : kNoFlock; }
  FolderLockTimes patient_times() const {
    FolderLockTimes times = kPatient;
    times.use_flock = GetParam();
    return times;
  }
  TemporaryFolder folder_;
};

TEST_P(FolderLocks, ASecondRunIsRefusedByNameAndAKilledOneFollowedAtOnce) {
  Holder first(folder_.path(), times());
  EXPECT_THAT(refusal_of(folder_.path(), times()),
              AllOf(HasSubstr("in use by another run (pid " + std::to_string(first.pid()) + " on "),
                    HasSubstr(" since 2"), HasSubstr("last heartbeat 2")));
  first.kill_9();
  const tests::Patience at_once(kAtOnce_s);
  EXPECT_EQ(refusal_of(folder_.path(), patient_times()), "");
  EXPECT_TRUE(at_once.is_kept());
}

TEST_P(FolderLocks, WhatIsGivenBackIsTakenAtOnce) {
  for (int i = 0; i < 3; ++i) {
    const tests::Patience at_once(kAtOnce_s);
    EXPECT_EQ(refusal_of(folder_.path(), patient_times()), "");
    EXPECT_TRUE(at_once.is_kept());
  }
  EXPECT_EQ(read(folder_.path() / ".lock"), "");
}

TEST_P(FolderLocks, AHeartbeatThatMovesElsewhereIsRefused) {
  LockHolder elsewhere = holder_elsewhere();
  write_holder(folder_.path(), elsewhere);
  std::atomic<bool> stopping = false;
  std::thread heart([&] {
    while (!stopping) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ++elsewhere.num_beats;
      write_holder(folder_.path(), elsewhere);
    }
  });
  EXPECT_THAT(refusal_of(folder_.path(), times()), HasSubstr("on node7 since"));
  stopping = true;
  heart.join();
}

TEST_P(FolderLocks, AHeartbeatThatStandsStillElsewhereIsTakenAfterAWhile) {
  write_holder(folder_.path(), holder_elsewhere());
  const tests::Patience patience(60);
  const FolderLock lock(folder_.path(), times());
  EXPECT_GE(patience.passed_s(), 0.6);
  EXPECT_EQ(LockHolder::parse(read(folder_.path() / ".lock"))->pid, ::getpid());
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutFlock, FolderLocks, ::testing::Bool());

TEST(FolderLock, AHolderThatEndsSoonIsWaitedFor) {
  const TemporaryFolder folder;
  Holder first(folder.path(), kQuick);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    first.kill_9();
  });
  EXPECT_EQ(refusal_of(folder.path(), {.patience_s = 10}), "");
  killer.join();
}

TEST(FolderLock, APidUsedAgainIsNotTheHolder) {
  const TemporaryFolder folder;
  LockHolder before = LockHolder::self();
  before.pid = ::getppid();  // alive, but it did not start then
  before.start_ticks += 1;
  write_holder(folder.path(), before);
  EXPECT_EQ(refusal_of(folder.path(), kNoFlock), "");
}

TEST(FolderLock, TheHeartbeatMovesAndItsLengthDoesNot) {
  const TemporaryFolder folder;
  const FolderLock lock(folder.path(), kQuick);
  const std::string first = read(folder.path() / ".lock");
  std::string later;
  EXPECT_TRUE(tests::comes_true([&] {
    later = read(folder.path() / ".lock");
    return LockHolder::parse(later)->num_beats > LockHolder::parse(first)->num_beats;
  }));
  EXPECT_EQ(later.size(), first.size());
}

TEST(FolderLock, AnotherRunThatTookTheFolderKeepsIt) {
  const TemporaryFolder folder;
  {
    const FolderLock lock(folder.path(), kQuick);
    write_holder(folder.path(), holder_elsewhere());
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  EXPECT_EQ(LockHolder::parse(read(folder.path() / ".lock"))->host, "node7");
}

TEST(FolderLock, AFileThatSaysNothingIsNoHolder) {
  const TemporaryFolder folder;
  for (const std::string text : {"", "pid 12 on host", "pid: x\ntoken: y\n", "pid: 3\nhost: h\n"}) {
    Writer file(folder.path() / ".lock");
    file.append(text);
    file.close();
    EXPECT_EQ(refusal_of(folder.path(), kQuick), "") << text;
  }
}

TEST(FolderLock, IsOpenToThoseAloneWhoMayWriteTheFolder) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / ".lock";
  for (const auto& [of_folder, of_file] :
       std::vector<std::pair<int, int>>{{0700, 0600}, {0755, 0600}, {0775, 0660}, {0777, 0666}}) {
    std::filesystem::permissions(folder.path(), std::filesystem::perms(of_folder));
    const FolderLock lock(folder.path(), kQuick);
    EXPECT_EQ(static_cast<int>(std::filesystem::status(path).permissions()), of_file);
    std::filesystem::permissions(path, std::filesystem::perms(0644));  // of an earlier version
  }
}

TEST(FolderLock, IsNoLinkAndNoPipe) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / ".lock", target = folder.path() / "other";
  Writer(target).close();
  std::filesystem::create_symlink(target, path);
  EXPECT_THAT(refusal_of(folder.path(), kQuick), HasSubstr("/.lock: "));
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(refusal_of(folder.path(), kQuick), HasSubstr("/.lock: "));
}

TEST(FolderLock, AFileThatCannotBeReadIsNotOneThatWasGivenBack) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / ".lock";
  write_holder(folder.path(), holder_elsewhere());
  std::thread bad_mount([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::filesystem::create_symlink(path, folder.path() / "loop");
    std::filesystem::rename(folder.path() / "loop", path);
  });
  try {
    const FolderLock lock(folder.path(), kNoFlock);
    ADD_FAILURE() << "the folder of a run that may live was taken";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kIo);
    EXPECT_THAT(fault.what(), HasSubstr("it is unknown whether a run uses the folder"));
  }
  bad_mount.join();
}

}  // namespace folder_lock_test
}  // namespace lockstep::files
