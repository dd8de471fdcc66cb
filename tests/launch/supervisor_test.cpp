#include "launch/supervisor.h"

#include <csignal>
#include <cstdlib>

#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files/files.h"
#include "base/process.h"
#include "support/temporary_folder.h"
#include "tests/support/patience.h"

namespace lockstep::launch {
namespace supervisor_test {

namespace fs = std::filesystem;

constexpr int kStopped = static_cast<int>(ExitCode::kStopped);

/// A supervisor in a process of its own, whose `mpirun` is a script.
class SupervisorTest : public ::testing::Test {
 protected:
  /// `script` may read how often it was started from $starts.
  pid_t start(const std::string& script, std::function<SaveFound()> newest_save) {
    const fs::path mpirun = folder_.path() / "mpirun";
    std::ofstream(mpirun) << "#!/bin/sh\necho . >>" << (folder_.path() / "starts").string()
                          << "\nstarts=$(wc -l <" << (folder_.path() / "starts").string() << ")\n"
                          << script << "\n";
    ::chmod(mpirun.c_str(), 0755);
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    ::setenv("PATH", (folder_.path().string() + ":" + std::getenv("PATH")).c_str(), 1);
    SupervisorOptions options;
    options.folder = folder_.path() / "run";
    options.program = [](bool) { return std::vector<std::string>{"lockstepd"}; };
    options.newest_save = std::move(newest_save);
    ::_exit(supervise(options));
  }
  int64_t num_starts() const {
    const fs::path starts = folder_.path() / "starts";
    return fs::exists(starts) ? static_cast<int64_t>(files::read(starts).size()) / 2 : 0;
  }
  void wait_for_starts(int64_t number) const {
    ASSERT_TRUE(tests::comes_true([&] { return num_starts() >= number; }));
  }
  static int code_of(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  fs::path mark(const char* name) const { return folder_.path() / name; }

 private:
  tests::TemporaryFolder folder_;
};

TEST_F(SupervisorTest, StartsAgainWhereTheSavesCannotBeListedForNow) {
  const pid_t pid = start("[ $starts -gt 1 ] || exit 137", [num_calls = 0]() mutable -> SaveFound {
    if (++num_calls == 1) return {};
    throw Error(ExitCode::kIo, "files", "checkpoints: Stale file handle");
  });
  EXPECT_EQ(code_of(pid), 0);
  EXPECT_EQ(num_starts(), 2);
}

TEST_F(SupervisorTest, IsStoppedWhileAMountHangs) {
  const fs::path hangs = mark("hangs");
  const pid_t pid = start("exit 137", [hangs, num_calls = 0]() mutable -> SaveFound {
    if (++num_calls == 1) return {};
    std::ofstream(hangs) << "now";
    while (true) ::pause();
  });
  ASSERT_TRUE(tests::comes_true([&] { return fs::exists(hangs); }));
  ::kill(pid, SIGTERM);
  EXPECT_EQ(code_of(pid), kStopped);
}

TEST_F(SupervisorTest, KeepsAWishToSaveUntilMpirunCanTakeIt) {
  const fs::path ready = mark("ready"), saved = mark("saved");
  const pid_t pid = start(
      "sleep 1; trap 'echo >" + saved.string() + "; exit 0' USR2; echo >" + ready.string() +
          "; export OMPI_COMM_WORLD_RANK=0; while :; do sh -c 'trap : USR2; sleep 0.2; :'; done",
      [] { return SaveFound{}; });
  wait_for_starts(1);
  ::kill(pid, SIGUSR2);
  EXPECT_EQ(code_of(pid), 0) << "it died of SIGUSR2 before its handlers were there";
  EXPECT_TRUE(fs::exists(ready));
  EXPECT_TRUE(fs::exists(saved));
}

TEST_F(SupervisorTest, TakesTheExitCodesOfOrphans) {
  const pid_t pid = start("for i in 1 2 3 4 5; do (sh -c 'sleep 0.1' &) ; done; sleep 1; echo >" +
                              mark("orphans_ended").string() +
                              "; export OMPI_COMM_WORLD_RANK=0; sh -c 'sleep 4; :'",
                          [] { return SaveFound{}; });
  wait_for_starts(1);
  const std::string zombies = "ps -o stat= --ppid " + std::to_string(pid) + " | grep -c ^Z";
  EXPECT_TRUE(tests::comes_true([&] { return fs::exists(mark("orphans_ended")); }));
  EXPECT_TRUE(tests::comes_true([&] { return run_in_shell(zombies).text == "0\n"; }, 2));
  EXPECT_EQ(code_of(pid), 0);
}

}  // namespace supervisor_test
}  // namespace lockstep::launch
