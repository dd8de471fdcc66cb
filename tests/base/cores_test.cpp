#include "base/process.h"

#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "support/temporary_folder.h"

namespace lockstep {
namespace cores_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CpuList, ReadsAndWritesTheKernelsForm) {
  EXPECT_THAT(parse_cpu_list("0-3,8"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(parse_cpu_list("5"), ElementsAre(5));
  EXPECT_THAT(parse_cpu_list(""), IsEmpty());
  EXPECT_THAT(parse_cpu_list("none"), IsEmpty());
  EXPECT_EQ(cpu_list({8, 0, 2, 1, 3}), "0-3,8");
  EXPECT_EQ(cpu_list({}), "");
}

TEST(Cores, ShareOfEachRankIsContiguousAndNeverEmpty) {
  std::vector<Core> cores;
  for (int i = 0; i < 5; ++i) cores.push_back({0, {2 * i, 2 * i + 1}});
  EXPECT_THAT(cpus_of(share_of_cores(cores, 0, 2)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(cpus_of(share_of_cores(cores, 1, 2)), ElementsAre(4, 5, 6, 7, 8, 9));
  EXPECT_THAT(cpus_of(share_of_cores(cores, 6, 7)), ElementsAre(2, 3)) << "more ranks than cores";
  EXPECT_THAT(share_of_cores({}, 0, 2), IsEmpty());
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text << "\n";
}

TEST(Cores, SiblingsAreOneCoreAndNodesComeInTurn) {
  std::vector<int> cpus = cpus_of(allowed_cores());
  if (cpus.size() < 2) GTEST_SKIP() << "needs two processors";
  const tests::TemporaryFolder sys;
  const int a = cpus[0], b = cpus[1];
  write(sys.path() / "node/online", "0-1");
  write(sys.path() / "node/node0/cpulist", fmt::format("{}", b));
  write(sys.path() / "node/node1/cpulist", fmt::format("{}", a));
  const std::vector<Core> apart = allowed_cores(sys.path());
  EXPECT_EQ(apart[0].cpus.front(), b) << "of node 0";
  EXPECT_EQ(apart.back().numa_node, 1);

  for (const int cpu : {a, b})
    write(sys.path() / fmt::format("cpu/cpu{}/topology/thread_siblings_list", cpu),
          fmt::format("{},{}", a, b));
  write(sys.path() / "node/node1/cpulist", "");
  write(sys.path() / "node/node0/cpulist", fmt::format("{},{}", a, b));
  EXPECT_THAT(allowed_cores(sys.path())[0].cpus, ElementsAre(a, b));
}

TEST(Cores, ABoundThreadSeesItsCoresOnly) {
  std::thread([] {
    const std::vector<Core> before = allowed_cores();
    ASSERT_TRUE(bind_this_thread(before.front().cpus));
    const std::vector<Core> after = allowed_cores();
    ASSERT_EQ(after.size(), 1U);
    EXPECT_EQ(after.front().cpus, before.front().cpus);
  }).join();
}

}  // namespace cores_test
}  // namespace lockstep
