#include "base/process.h"

#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace cgroup_test {

/// A made-up root folder with what the kernel shows in /proc/self and /sys/fs/cgroup.
class FakeRoot {
 public:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  /// `group` is what the mount shows, as in mountinfo.
  void mount(const std::string& type, const std::string& options, const std::string& group,
             const std::string& point) {
    mounts_ += "30 25 0:26 " + group + " " + point + " rw,nosuid shared:9 - " + type + " " + type +
               " rw," + options + "\n";
    write("proc/self/mountinfo", mounts_);
  }
  CgroupLimits limits() const { return cgroup_limits(folder_.path()); }

 private:
  tests::TemporaryFolder folder_;
  std::string mounts_;
};

TEST(Cgroup, OfAVersion2Container) {
  FakeRoot root;
  root.mount("cgroup2", "nsdelegate", "/", "/sys/fs/cgroup");
  root.write("proc/self/cgroup", "0::/");
  root.write("sys/fs/cgroup/cpu.max", "150000 100000");
  root.write("sys/fs/cgroup/memory.max", "4294967296");
  EXPECT_EQ(root.limits().cores, 1.5);
  EXPECT_EQ(root.limits().memory_bytes, int64_t{4} << 30);
}

TEST(Cgroup, TheSmallestOfAllGroupsAboveCounts) {
  FakeRoot root;
  root.mount("cgroup2", "nsdelegate", "/", "/sys/fs/cgroup");
  root.write("proc/self/cgroup", "0::/kubepods/pod7/container");
  root.write("sys/fs/cgroup/kubepods/cpu.max", "6400000 100000");
  root.write("sys/fs/cgroup/kubepods/pod7/cpu.max", "200000 100000");
  root.write("sys/fs/cgroup/kubepods/pod7/memory.max", "1073741824");
  root.write("sys/fs/cgroup/kubepods/pod7/container/cpu.max", "max 100000");
  root.write("sys/fs/cgroup/kubepods/pod7/container/memory.max", "max");
  EXPECT_EQ(root.limits().cores, 2);
  EXPECT_EQ(root.limits().memory_bytes, int64_t{1} << 30);
}

TEST(Cgroup, OfAVersion1ContainerThatIsNamedFromOutside) {
  FakeRoot root;
  root.mount("cgroup", "cpu,cpuacct", "/docker/ab12", "/sys/fs/cgroup/cpu,cpuacct");
  root.mount("cgroup", "memory", "/docker/ab12", "/sys/fs/cgroup/memory");
  root.write("proc/self/cgroup", "5:memory:/docker/ab12\n4:cpu,cpuacct:/docker/ab12");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912");
  EXPECT_EQ(root.limits().cores, 3);
  EXPECT_EQ(root.limits().memory_bytes, int64_t{1} << 29);
}

TEST(Cgroup, OfAVersion1GroupOfAHost) {
  FakeRoot root;
  root.mount("cgroup", "cpu", "/", "/sys/fs/cgroup/cpu");
  root.mount("cgroup2", "nsdelegate", "/", "/sys/fs/cgroup/unified");
  root.write("proc/self/cgroup", "1:cpu:/batch/job3\n0::/");
  root.write("sys/fs/cgroup/cpu/batch/job3/cpu.cfs_quota_us", "50000");
  root.write("sys/fs/cgroup/cpu/batch/job3/cpu.cfs_period_us", "100000");
  EXPECT_EQ(root.limits().cores, 0.5);
  EXPECT_EQ(root.limits().memory_bytes, std::nullopt);
}

TEST(Cgroup, NoLimitIsNone) {
  FakeRoot root;
  EXPECT_EQ(root.limits().cores, std::nullopt) << "no /proc";
  root.mount("cgroup", "cpu", "/", "/sys/fs/cgroup/cpu");
  root.mount("cgroup", "memory", "/", "/sys/fs/cgroup/memory");
  root.write("proc/self/cgroup", "2:memory:/\n1:cpu:/");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(root.limits().cores, std::nullopt);
  EXPECT_EQ(root.limits().memory_bytes, std::nullopt);
}

TEST(Cgroup, OfThisHostCanBeRead) {
  EXPECT_GT(usable_memory_bytes(), int64_t{1} << 20);
  EXPECT_GE(num_usable_cores(), 1);
}

}  // namespace cgroup_test
}  // namespace lockstep
