#include "launch/mpirun.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launch {
namespace mpirun_messages_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// As Open MPI 4.1.4 and OpenSSH print them.
constexpr const char* kKilled =
    "--------------------------------------------------------------------------\n"
    "mpirun noticed that process rank 1 with PID 4711 on node n2 exited on signal 9 (Killed).\n"
    "--------------------------------------------------------------------------\n";
constexpr const char* kLost =
    "ORTE has lost communication with a remote daemon.\n\n"
    "  HNP daemon   : [[46092,0],0] on node n1\n"
    "  Remote daemon: [[46092,0],1] on node n3\n\n"
    "This is usually due to either a failure of the TCP network\n";

TEST(MpirunMessages, AKilledRankNamesItsHost) {
  MpirunMessages messages;
  messages.read(kKilled);
  EXPECT_THAT(messages.killed_on(), ElementsAre("n2"));
  EXPECT_THAT(messages.lost(), IsEmpty());
}

TEST(MpirunMessages, ALostDaemonNamesItsHostAndNotMpiruns) {
  MpirunMessages messages;
  messages.read(kLost);
  EXPECT_THAT(messages.lost(), ElementsAre("n3"));
  EXPECT_THAT(messages.killed_on(), IsEmpty());
}

TEST(MpirunMessages, SshNamesWhatItCannotReach) {
  MpirunMessages messages;
  messages.read("ssh: connect to host n4 port 22: Connection refused\r\n");
  messages.read("ssh: Could not resolve hostname n5: Name or service not known\r\n");
  EXPECT_THAT(messages.lost(), ElementsAre("n4", "n5"));
}

TEST(MpirunMessages, ComeInPiecesOfAnySize) {
  MpirunMessages messages;
  for (const char* const text : {kKilled, kLost})
    for (const char* c = text; *c != 0; ++c) messages.read({c, 1});
  EXPECT_THAT(messages.killed_on(), ElementsAre("n2"));
  EXPECT_THAT(messages.lost(), ElementsAre("n3"));
}

TEST(MpirunMessages, WhatRanksPrintIsNotTakenForThem) {
  MpirunMessages messages;
  messages.read(
      "2026-01-01 E rank 0 [train] mpirun noticed that process rank 1 on node n9 exited on "
      "signal\n");
  messages.read("mpirun noticed that process rank 0 exited on signal 9\n");
  std::string long_line(100000, 'x');
  long_line += " Remote daemon: on node n8\n";
  messages.read(long_line);
  messages.read("W rank 3 [net]   Remote daemon: [[46092,0],1] on node n7\n");
  EXPECT_THAT(messages.killed_on(), IsEmpty());
  EXPECT_THAT(messages.lost(), IsEmpty());
}

TEST(MpirunMessages, TheFirstExitCodeOfARankCounts) {
  MpirunMessages messages;
  messages.read("lockstepd: the run begins\n");
  EXPECT_FALSE(messages.exit_code());
  messages.read(
      "lockstepd: the run ends with exit code 65\nlockstepd: the run ends with exit code 69\n");
  EXPECT_EQ(messages.exit_code(), 65);
  MpirunMessages tagged;
  tagged.read("[1,0]<stderr>:lockstepd: the run ends with exit code 75\n");
  EXPECT_EQ(tagged.exit_code(), 75);
}

TEST(MpirunCommand, SparesFollowTheRanksFromTheLastHostOn) {
  const std::string words =
      fmt::format("{}", fmt::join(mpirun_command({.num_ranks = 4,
                                                  .hosts = {{"n1", 2}, {"n2", 2}},
                                                  .program = {"lockstepd", "--quiet"},
                                                  .num_spares = 3}),
                                  " "));
  EXPECT_THAT(words, ::testing::MatchesRegex(
                         "mpirun -n 4 .*--host n1:2,n2:2 lockstepd --spares 3 --quiet : -n 1 "
                         ".*--host n2:1 lockstepd --spares 3 --quiet : -n 1 .*--host n1:1 "
                         "lockstepd .* : -n 1 .*--host n2:1 lockstepd .*"));
}

TEST(MpirunCommand, OnOneHostSparesAreTheLastProcesses) {
  const std::vector<std::string> words =
      mpirun_command({.num_ranks = 2, .program = {"lockstepd"}, .num_spares = 1});
  EXPECT_THAT(words, ::testing::Contains("3"));
  EXPECT_THAT(words, ::testing::Not(::testing::Contains(":")));
}

}  // namespace mpirun_messages_test
}  // namespace lockstep::launch
