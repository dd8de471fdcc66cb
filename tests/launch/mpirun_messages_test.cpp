#include "launch/mpirun.h"

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

}  // namespace mpirun_messages_test
}  // namespace lockstep::launch
