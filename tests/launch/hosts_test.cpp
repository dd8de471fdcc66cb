#include "launch/mpirun.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launch {
namespace hosts_test {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::string refusal_of(const std::string& text) {
  try {
    (void)parse_hosts(text);
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kUsage) << fault.what();
    return fault.what();
  }
  return "none";
}

TEST(Hosts, AreReadFromAList) {
  const std::vector<Host> hosts = parse_hosts("n1:4,n2,[fe80::1]:2");
  EXPECT_EQ(host_list(hosts), "n1:4,n2:1,[fe80::1]:2");
  EXPECT_EQ(num_slots(hosts), 7);
}

TEST(Hosts, AreReadFromAFile) {
  const tests::TemporaryFolder folder;
  const std::string path = (folder.path() / "hosts").string();
  files::write_atomically(path, "# of the rack\nn1 slots=4\n\n  n2:2  # smaller\nn3\n");
  EXPECT_EQ(host_list(parse_hosts("@" + path)), "n1:4,n2:2,n3:1");
}

TEST(Hosts, AHostTwiceIsRefused) {
  EXPECT_THAT(refusal_of("n1:2,n2:2,n1:1"), HasSubstr("'n1' is listed twice among the hosts"));
}

TEST(Hosts, WhatIsNoListIsRefused) {
  for (const char* text :
       {"", ",", "n1:0", "n1:x", "n1:", ":4", "n1:4x", "n1:5000", "-x", "n1,,n2"})
    EXPECT_THAT(refusal_of(text), HasSubstr("n1:4,n2:4")) << text;
}

TEST(Hosts, NoneInAFileIsRefused) {
  const tests::TemporaryFolder folder;
  const std::string path = (folder.path() / "hosts").string();
  files::write_atomically(path, "# none\n");
  EXPECT_THAT(refusal_of("@" + path), HasSubstr("names no host"));
  files::write_atomically(path, "n1 slots=2 max=3\n");
  EXPECT_THAT(refusal_of("@" + path), HasSubstr("not a line of a host"));
}

TEST(MpirunCommand, OnThisHostNamesNoHosts) {
  const auto line = mpirun_command({.num_ranks = 2, .program = {"lockstepd", "--config", "a b"}});
  EXPECT_THAT((std::vector<std::string>(line.begin(), line.begin() + 3)),
              ElementsAre("mpirun", "-n", "2"));
  EXPECT_THAT((std::vector<std::string>(line.end() - 3, line.end())),
              ElementsAre("lockstepd", "--config", "a b"));
  for (const std::string& word : line) {
    EXPECT_NE(word, "--host");
    EXPECT_NE(word, "--allow-run-as-root");
  }
}

TEST(MpirunCommand, OnOthersExportsVariablesAndPutsTheProgramLast) {
  const auto line = mpirun_command({.num_ranks = 3,
                                    .hosts = {{"n1", 2}, {"n2", 1}},
                                    .program = {"lockstepd"},
                                    .exported = {"LOCKSTEP_RUN_SEED"},
                                    .more = {"--mca", "oob_tcp_if_include", "eth1"},
                                    .is_root = true});
  const std::vector<std::string> end(line.end() - 9, line.end());
  EXPECT_THAT(end, ElementsAreArray({"--allow-run-as-root", "--host", "n1:2,n2:1", "-x",
                                     "LOCKSTEP_RUN_SEED", "--mca", "oob_tcp_if_include", "eth1",
                                     "lockstepd"}));
}

}  // namespace hosts_test
}  // namespace lockstep::launch
