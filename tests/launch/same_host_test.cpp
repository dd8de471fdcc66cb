#include "launch/mpirun.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::launch {
namespace same_host_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> in_a_book(const std::string& name) {
  static const std::map<std::string, std::vector<std::string>> book{{"n1", {"10.0.0.1"}},
                                                                    {"n1.cluster", {"10.0.0.1"}},
                                                                    {"n2", {"10.0.0.2", "fd00::2"}},
                                                                    {"[fd00::2]", {"fd00::2"}}};
  const auto found = book.find(name);
  return found == book.end() ? std::vector<std::string>() : found->second;
}

std::string refusal_of(const std::vector<Host>& hosts) {
  try {
    require_different_hosts(hosts, in_a_book);
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kUsage) << fault.what();
    return fault.what();
  }
  return "none";
}

TEST(SameHost, TwoNamesOfOneAreRefusedWithTheSlotsOfBoth) {
  EXPECT_THAT(refusal_of({{"n1", 2}, {"n2", 1}, {"n1.cluster", 3}}),
              HasSubstr("'n1' and 'n1.cluster' are names of one host (10.0.0.1): name it once, "
                        "with the slots of both, as n1:5"));
  EXPECT_THAT(refusal_of({{"n2", 1}, {"[fd00::2]", 1}}), HasSubstr("(fd00::2)"));
}

TEST(SameHost, DifferentOnesAndUnknownOnesAreNot) {
  EXPECT_EQ(refusal_of({}), "none");
  EXPECT_EQ(refusal_of({{"n1", 2}}), "none");
  EXPECT_EQ(refusal_of({{"n1", 2}, {"n2", 2}, {"unknown", 1}, {"other", 1}}), "none");
}

TEST(SameHost, AllNamesOfThisHostAreOne) {
  EXPECT_THAT(addresses_of("localhost"), ElementsAre("this host"));
  EXPECT_THAT(addresses_of("127.0.1.1"), ElementsAre("this host"));
  EXPECT_THAT(addresses_of("[::1]"), ElementsAre("this host"));
  EXPECT_THAT(addresses_of("192.0.2.7"), ElementsAre("192.0.2.7"));
  EXPECT_THAT(addresses_of("no-such-host.invalid"), IsEmpty());
}

}  // namespace same_host_test
}  // namespace lockstep::launch
