// The section gpu, and which GPU a rank takes, over a module of GPUs that are not there.
#include <cstdlib>
#include <filesystem>
#include <mutex>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "daemon/config/run_config.h"
#include "daemon/run/device.h"
#include "dist/communicator.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_world.h"

namespace lockstep::daemon {
namespace gpu_setup_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kGib = int64_t{1} << 30;

class FakeGpus : public ::testing::Test {
 protected:
  FakeGpus() {
    setenv("LOCKSTEP_NCCL_MODULE", LOCKSTEP_TEST_GPU_MODULE, 1);
    setenv("LOCKSTEP_TEST_GPUS", "GPU-a,GPU-b,GPU-c,GPU-d,GPU-e", 1);
  }
  ~FakeGpus() override {
    for (const char* name : {"LOCKSTEP_NCCL_MODULE", "LOCKSTEP_TEST_GPUS", "CUDA_VISIBLE_DEVICES"})
      unsetenv(name);
  }
};

/// Each rank's GPU, after all have set it up so.
std::vector<metrics::GpuFacts> set_up(int num_ranks, const GpuOptions& options) {
  std::vector<metrics::GpuFacts> facts_N(static_cast<size_t>(num_ranks));
  tests::run_ranks(num_ranks, [&](dist::Communicator& control) {
    const dist::ProcessInfo process{.rank = control.rank(), .world_size = num_ranks, .node = "a"};
    const at::Device device = agree_on_device("cuda", process, control);
    facts_N[static_cast<size_t>(control.rank())] = set_up_gpu(options, device, control).value();
  });
  return facts_N;
}

TEST_F(FakeGpus, TheVisibleOnesCountFromZero) {
  setenv("CUDA_VISIBLE_DEVICES", "2,3", 1);
  const std::vector<metrics::GpuFacts> facts_N =
      set_up(2, {.per_process_gpu_memory_fraction = 0.4});
  EXPECT_EQ(facts_N[0].index, 0);
  EXPECT_EQ(facts_N[0].id, "GPU-c");
  EXPECT_EQ(facts_N[0].name, "2");
  EXPECT_EQ(facts_N[1].index, 1);
  EXPECT_EQ(facts_N[1].id, "GPU-d");
  EXPECT_EQ(facts_N[1].name, "3");
  EXPECT_EQ(facts_N[1].visible_devices, "2,3");
  EXPECT_EQ(facts_N[1].memory_bytes, 80 * kGib);
  EXPECT_EQ(facts_N[1].memory_limit_bytes, 32 * kGib);
  EXPECT_THROW(set_up(3, {}), Error) << "three ranks, and two GPUs to be seen";
}

TEST_F(FakeGpus, WithoutTheVariableTheHostsOwnNumbersHold) {
  const std::vector<metrics::GpuFacts> facts_N = set_up(3, {});
  EXPECT_EQ(facts_N[2].id, "GPU-c");
  EXPECT_EQ(facts_N[2].name, "2");
  EXPECT_EQ(facts_N[2].memory_limit_bytes, 80 * kGib);
}

TEST_F(FakeGpus, WhatWasSetUpIsNotChangedLater) {
  setenv("CUDA_VISIBLE_DEVICES", "4", 1);
  dist::SelfCommunicator self;
  GpuOptions half;
  half.per_process_gpu_memory_fraction = 0.5;
  half.memory_policy = "all";
  EXPECT_EQ(set_up_gpu(half, {at::kCUDA, 0}, self)->memory_policy, "all");
  const metrics::GpuUse use = gpu_use(0);
  EXPECT_EQ(use.reserved_bytes, 40704 * kGib / 1024) << "of the allocator, as the table has it";
  EXPECT_EQ(use.allocated_bytes, 3);
  EXPECT_EQ(use.peak_bytes, 5);
  EXPECT_EQ(use.num_ooms, 1);
  try {
    set_up_gpu({}, {at::kCUDA, 0}, self);
    ADD_FAILURE() << "memory was divided twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_TRUE(error.on_every_rank());
    EXPECT_THAT(error.what(), AllOf(HasSubstr("comes too late"), HasSubstr("40704 MiB")));
  }
}

/// A folder at the front of PATH with an nvidia-smi that says this.
class FakeSmi {
 public:
  explicit FakeSmi(const std::string& text) : path_before_(std::getenv("PATH")) {
    const std::filesystem::path program = folder_.path() / "nvidia-smi";
    files::write_atomically(program, "#!/bin/sh\ncat <<'END'\n" + text + "END\n");
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    setenv("PATH", (folder_.path().string() + ":" + path_before_).c_str(), 1);
  }
  ~FakeSmi() { setenv("PATH", path_before_.c_str(), 1); }
  FakeSmi(const FakeSmi&) = delete;
  FakeSmi& operator=(const FakeSmi&) = delete;

 private:
  const tests::TemporaryFolder folder_;
  const std::string path_before_;
};

TEST_F(FakeGpus, WhoComputesOnOneIsNamedUnlessItIsARank) {
  const FakeSmi smi(
      fmt::format("GPU-b, 812, /opt/x,y/python3, 12000\nGPU-b, {}, lockstepd, 300\n"
                  "GPU-e, 813, other, [N/A]\nNo devices were found\n",
                  ::getpid()));
  ::testing::internal::CaptureStderr();
  log::configure_console({.level = log::Level::kWarning});
  (void)set_up(2, {});
  (void)log::flush(2.0);
  log::configure_console({});
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("GPU-b is busy with process 812 (python3, 12000 MiB): "));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("lockstepd")));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("813")));
}

TEST_F(FakeGpus, ARestartDoesNotAsk) {
  const FakeSmi smi("GPU-a, 812, python3, 12000\n");
  setenv("LOCKSTEP_RESTART_COUNT", "1", 1);
  const int64_t warnings = log::num_lines(log::Level::kWarning);
  (void)set_up(1, {});
  unsetenv("LOCKSTEP_RESTART_COUNT");
  EXPECT_EQ(log::num_lines(log::Level::kWarning), warnings);
  (void)set_up(1, {});
  EXPECT_EQ(log::num_lines(log::Level::kWarning), warnings + 1);
}

TEST(GpuNames, AreTheSameWithDashesAndWithout) {
  EXPECT_TRUE(is_same_gpu("GPU-0f3a12bc", "GPU-0f3a-12bc"));
  EXPECT_FALSE(is_same_gpu("GPU-0f3a12bc", "GPU-0f3a-12bd"));
}

TEST(GpuNames, AreThoseOfTheVariable) {
  EXPECT_EQ(name_of_gpu("2,3", 0), "2");
  EXPECT_EQ(name_of_gpu("2,3", 1), "3");
  EXPECT_EQ(name_of_gpu("GPU-1f,MIG-2a", 1), "MIG-2a");
  EXPECT_EQ(name_of_gpu("", 1), "1");
}

GpuOptions read(const std::string& section, std::string* faults_text) {
  Diagnostics faults;
  const RunConfig config = load_run_config(LOCKSTEP_SOURCE_DIR "/configs/digits.yaml",
                                           {parse_set("gpu=" + section)}, &faults);
  *faults_text = faults.empty() ? "" : faults.text();
  return config.gpu;
}

TEST(GpuOptions, SayHowMemoryIsTaken) {
  struct Case {
    const char* section;
    double fraction;
    bool at_start;
  };
  for (const Case& one : std::vector<Case>{
           {"{}", 1, false},
           {"{allow_growth: true}", 1, false},
           {"{allow_growth: false}", 1, true},
           {"{memory_policy: all}", 1, true},
           {"{memory_policy: default}", 1, false},
           {"{memory_policy: all, allow_growth: false}", 1, true},
           {"{memory_policy: default, allow_growth: true}", 1, false},
           {"{per_process_gpu_memory_fraction: 0.4}", 0.4, false},
           {"{per_process_gpu_memory_fraction: 0.4, allow_growth: false}", 0.4, true}}) {
    std::string faults;
    const dist::GpuMemoryOptions memory = read(one.section, &faults).memory();
    EXPECT_EQ(faults, "") << one.section;
    EXPECT_EQ(memory.fraction, one.fraction) << one.section;
    EXPECT_EQ(memory.at_start, one.at_start) << one.section;
  }
}

TEST(GpuOptions, ContradictionsAndSharesOutOfRangeAreFaults) {
  std::string faults;
  read("{memory_policy: all, allow_growth: true}", &faults);
  EXPECT_THAT(faults, HasSubstr("remove one"));
  read("{memory_policy: default, allow_growth: false}", &faults);
  EXPECT_THAT(faults, HasSubstr("remove one"));
  for (const char* share : {"0", "-0.1", "1.01", ".nan", "40%"}) {
    read("{per_process_gpu_memory_fraction: " + std::string(share) + "}", &faults);
    EXPECT_THAT(faults, HasSubstr("gpu.per_process_gpu_memory_fraction")) << share;
  }
  read("{memory_fraction: 0.4}", &faults);
  EXPECT_THAT(faults, HasSubstr("memory_fraction"));
}

}  // namespace gpu_setup_test
}  // namespace lockstep::daemon
