#include "daemon/run/doctor.h"

#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"

namespace lockstep::daemon {
namespace links_test {

using ::testing::HasSubstr;
using Pairs = std::multiset<std::pair<int, int>>;

Pairs pairs_of(int num_ranks) {
  Pairs pairs;
  tests::run_ranks(num_ranks, [&](dist::Communicator& comm) {
    const std::vector<Link> links = measure_links(comm);
    for (const Link& link : links) {
      EXPECT_GT(link.latency_s, 0);
      EXPECT_GT(link.bandwidth_bytes_s, 0);
    }
    if (comm.rank() == comm.world_size() - 1)  // equal on all
      for (const Link& link : links) pairs.emplace(link.first, link.second);
  });
  return pairs;
}

TEST(Links, EveryPairIsMeasuredOnce) {
  EXPECT_EQ(pairs_of(1), Pairs());
  EXPECT_EQ(pairs_of(2), (Pairs{{0, 1}}));
  EXPECT_EQ(pairs_of(3), (Pairs{{0, 1}, {0, 2}, {1, 2}}));
  EXPECT_EQ(pairs_of(4), (Pairs{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}));
  EXPECT_EQ(
      pairs_of(5),
      (Pairs{{0, 1}, {0, 2}, {0, 3}, {0, 4}, {1, 2}, {1, 3}, {1, 4}, {2, 3}, {2, 4}, {3, 4}}));
}

TEST(Links, OneThatIsMuchSlowerThanOthersOfItsKindIsNoted) {
  const std::vector<Link> links{{0, 1, 1e-6, 9e9}, {2, 3, 1e-6, 2e9},   {4, 5, 1e-6, 8e9},
                                {0, 2, 5e-5, 1e9}, {0, 4, 5e-5, 0.9e9}, {2, 4, 5e-5, 0.2e9}};
  const auto found = link_findings(links, {"a", "a", "b", "b", "c", "c"});
  ASSERT_EQ(found.size(), 6U);
  for (const size_t sound : {0, 2, 3, 4}) EXPECT_EQ(found[sound].kind, Finding::kOk) << sound;
  EXPECT_EQ(found[1].kind, Finding::kNote);
  EXPECT_EQ(found[5].kind, Finding::kNote);
  EXPECT_EQ(found[1].text, "1.0 us, 2.00 GB/s (in b)");
  EXPECT_EQ(found[5].text, "50.0 us, 0.20 GB/s (b to c)");
  EXPECT_THAT(found[1].cure, HasSubstr("others of its kind have 8.00 GB/s"));
  EXPECT_EQ(exit_code_of(found), 0) << "slow is no fault";
  EXPECT_THAT(link_findings({}, {"a"}), ::testing::IsEmpty());
}

TEST(Findings, AFaultStopsAndSaysWhatToDo) {
  const std::vector<Finding> found{{Finding::kOk, "cores", "2", ""},
                                   {Finding::kFault, "mpirun", "is not in PATH", "install it"}};
  EXPECT_EQ(exit_code_of(found), 69);
  EXPECT_EQ(text_of(found),
            "ok     cores               2\n"
            "FAULT  mpirun              is not in PATH\n"
            "                           what to do: install it\n");
}

}  // namespace links_test
}  // namespace lockstep::daemon
