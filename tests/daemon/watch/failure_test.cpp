#include "daemon/control/failure.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::daemon {
namespace failure_test {

using ::testing::HasSubstr;

Failure of_rank(int rank, ExitCode code, double unix_time_s) {
  return {.rank = rank,
          .node = "n" + std::to_string(rank),
          .pid = 100 + rank,
          .step = 7,
          .exit_code = static_cast<int>(code),
          .message = "fault of " + std::to_string(rank),
          .unix_time_s = unix_time_s};
}

class Failures : public ::testing::Test {
 protected:
  /// The rank of the cause; -1: none.
  int cause(const Failure& own) const {
    const auto found = cause_of(folder_.path(), own);
    return found ? found->rank : -1;
  }

  tests::TemporaryFolder folder_;
};

TEST_F(Failures, AFaultOfItsOwnComesBeforeALostPeerWhateverTheClocksSay) {
  write_failure(folder_.path(), of_rank(1, ExitCode::kUnavailable, 5));
  write_failure(folder_.path(), of_rank(2, ExitCode::kBug, 900));
  EXPECT_EQ(cause(of_rank(0, ExitCode::kUnavailable, 10)), 2);
  EXPECT_EQ(cause(of_rank(0, ExitCode::kWatchdog, 10)), 2);
}

TEST_F(Failures, AmongLostPeersTheFirstIsTheCause) {
  write_failure(folder_.path(), of_rank(1, ExitCode::kUnavailable, 5));
  write_failure(folder_.path(), of_rank(3, ExitCode::kWatchdog, 4));
  EXPECT_EQ(cause(of_rank(0, ExitCode::kUnavailable, 10)), 3);
  EXPECT_EQ(cause(of_rank(0, ExitCode::kUnavailable, 3)), -1) << "it is the first itself";
}

TEST_F(Failures, AFaultOfItsOwnNeedsNoCause) {
  write_failure(folder_.path(), of_rank(1, ExitCode::kBug, 5));
  EXPECT_EQ(cause(of_rank(0, ExitCode::kIo, 10)), -1);
}

TEST_F(Failures, ItsOwnAndBrokenFilesArePassedOver) {
  write_failure(folder_.path(), of_rank(0, ExitCode::kUnavailable, 1));
  files::write_atomically(folder_.path() / "lockstep-error-1.json", "{\"rank\": 1, ");
  files::write_atomically(folder_.path() / "lockstep-error-2.json", "[]");
  EXPECT_EQ(cause(of_rank(0, ExitCode::kUnavailable, 10)), -1);
}

TEST_F(Failures, AreRemovedAlone) {
  write_failure(folder_.path(), of_rank(1, ExitCode::kBug, 5));
  files::write_atomically(folder_.path() / "rank0.log", "");
  remove_failures(folder_.path());
  EXPECT_THAT(files::list(folder_.path()), ::testing::ElementsAre("rank0.log"));
}

TEST_F(Failures, WhatIsNoTextIsWrittenAllTheSame) {
  Failure odd = of_rank(1, ExitCode::kBug, 5);
  odd.message = "bytes \xff\xfe and a\nline";
  write_failure(folder_.path(), odd);
  EXPECT_EQ(cause(of_rank(0, ExitCode::kUnavailable, 10)), 1);
}

TEST_F(Failures, TheBoxHoldsWhoWhatAndWhatToDo) {
  Failure failure = of_rank(1, ExitCode::kWatchdog, 5);
  failure.message = "first line\n" + std::string(150, 'x') + " " + std::string(60, 'y');
  const std::string box = boxed(failure);
  EXPECT_THAT(box, HasSubstr("exit code 79: rank 1 on n1 (process 101), after step 7 "));
  EXPECT_THAT(box, HasSubstr("| first line "));
  EXPECT_THAT(box, HasSubstr("what to do: run the same command again; "));
  std::istringstream lines(box);
  size_t num_lines = 0;
  for (std::string line; std::getline(lines, line); ++num_lines)
    EXPECT_EQ(line.size(), 104) << line;
  EXPECT_EQ(num_lines, 8u) << box;
}

}  // namespace failure_test
}  // namespace lockstep::daemon
