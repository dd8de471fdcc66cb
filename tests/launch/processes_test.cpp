#include <csignal>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "launch/processes.h"
#include "launch/stop_signals.h"
#include "tests/support/patience.h"

namespace lockstep::launch {
namespace processes_test {

using ::testing::SizeIs;
using tests::comes_true;

int code_of(Child& child) {
  EXPECT_TRUE(comes_true([&] { return child.poll().has_value(); }));
  return child.poll().value_or(-1);
}

std::string all_errors(Child& child) {
  std::string text;
  while (child.errors() >= 0) text += child.read_errors();
  return text;
}

TEST(Processes, AChildTellsItsErrorsItsVariablesAndItsCode) {
  Child child({"sh", "-c", "echo \"$A $HOME\" >&2; read line || exit 7"},
              {{"A", "one two"}, {"HOME", "/x"}});
  EXPECT_EQ(all_errors(child), "one two /x\n");
  EXPECT_EQ(code_of(child), 7);  // nothing to read on stdin
}

TEST(Processes, AProgramThatIsNotThereIsAnError) {
  const std::string before = std::getenv("PATH");
  ::setenv("PATH", "/usr/bin", 1);  // a folder that the user may not search is another error
  try {
    const Child child({"no-such-program-here"}, {});
    FAIL() << "it started";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kUnavailable);
    EXPECT_THAT(fault.what(), ::testing::HasSubstr("no-such-program-here: No such file"));
  }
  ::setenv("PATH", before.c_str(), 1);
}

TEST(Processes, ASignalIsItsCode) {
  Child child({"sleep", "60"}, {});
  child.signal(SIGKILL);
  EXPECT_EQ(code_of(child), 128 + SIGKILL);
  child.signal(SIGKILL);  // it has ended: no signal is sent
}

TEST(Processes, ItsGroupIsItsOwn) {
  Child child({"sleep", "60"}, {});
  EXPECT_TRUE(comes_true([&] { return ::getpgid(child.pid()) == child.pid(); }));
  EXPECT_TRUE(kill_descendants(30));
}

TEST(Processes, EndsOfGrandchildrenAreKnownAtOnce) {
  Child child({"sh", "-c", "A=1 sleep 60 & A=1 sleep 61 & wait"}, {});
  EXPECT_TRUE(comes_true([] { return descendants_with("A").size() == 2; }));
  const std::vector<pid_t> sleepers = descendants_with("A");
  ProcessEnds ends;
  EXPECT_FALSE(ends.are_all_over()) << "none is known";
  for (const pid_t pid : sleepers) ends.add(pid);
  ends.add(sleepers[0]);
  const tests::Patience patience(20);
  for (const pid_t pid : sleepers) {
    EXPECT_FALSE(ends.are_all_over());
    ::kill(pid, SIGKILL);
    ends.wait({}, 30'000);
  }
  EXPECT_TRUE(ends.are_all_over());
  EXPECT_TRUE(patience.is_kept());
  EXPECT_TRUE(comes_true([&] { return ::kill(sleepers[0], 0) != 0; }));  // the shell has waited
  ends.add(sleepers[0]);
  EXPECT_TRUE(ends.are_all_over()) << "what has ended is not looked at";
  EXPECT_TRUE(kill_descendants(30));
}

TEST(Processes, OrphansAreKilledToo) {
  adopt_orphans();
  // A grandchild in a session of its own, whose parent has gone.
  Child child({"sh", "-c", "setsid sleep 60 & setsid sh -c 'trap \"\" TERM; sleep 61' & exit 3"},
              {});
  EXPECT_EQ(code_of(child), 3);
  EXPECT_TRUE(comes_true([] { return descendants().size() == 3; }));
  EXPECT_TRUE(kill_descendants(30));
  EXPECT_THAT(descendants(), SizeIs(0));
}

TEST(Processes, AChildIsToldToEndWhenItsParentIsKilled) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const Child child({"sleep", "60"}, {});
    const pid_t pid = child.pid();
    (void)!::write(ends[1], &pid, sizeof pid);
    ::pause();
  }
  pid_t pid = 0;
  ASSERT_EQ(::read(ends[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  adopt_orphans();
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);  // it came to us
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

TEST(Processes, SignalsWaitInTheQueue) {
  {
    SignalQueue queue{SIGUSR1, SIGTERM};
    ::kill(::getpid(), SIGTERM);
    ::kill(::getpid(), SIGUSR1);
    ::kill(::getpid(), SIGUSR1);
    EXPECT_THAT(queue.take(), ::testing::UnorderedElementsAre(SIGTERM, SIGUSR1));
    EXPECT_THAT(queue.take(), SizeIs(0));
  }
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  EXPECT_EQ(::sigismember(&now, SIGTERM), 0);
}

}  // namespace processes_test
}  // namespace lockstep::launch
