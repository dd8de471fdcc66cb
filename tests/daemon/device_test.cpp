#include "daemon/run/device.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::daemon {
namespace device_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Ranks 0, 1, ... with their host and what each sees.
std::vector<VisibleGpus> ranks(
    const std::vector<std::pair<std::string, std::vector<std::string>>>& sights_N) {
  std::vector<VisibleGpus> all_N;
  for (const auto& [node, ids] : sights_N)
    all_N.push_back({static_cast<int>(all_N.size()), node, ids});
  return all_N;
}

struct Case {
  const char* what;
  std::vector<std::pair<std::string, std::vector<std::string>>> sights_N;
  std::vector<int> index_N;
};

TEST(DeviceChoice, EachRankGetsAGpuOfItsOwn) {
  const std::vector<Case> cases = {
      {"one rank, one GPU", {{"a", {"A"}}}, {0}},
      {"all GPUs are visible to all ranks",
       {{"a", {"A", "B"}}, {"a", {"A", "B"}}, {"b", {"C", "D"}}, {"b", {"C", "D"}}},
       {0, 1, 0, 1}},
      {"more GPUs than ranks", {{"a", {"A", "B", "C"}}, {"a", {"A", "B", "C"}}}, {0, 1}},
      {"Slurm --gpus-per-task=1, CUDA_VISIBLE_DEVICES by rank",
       {{"a", {"A"}}, {"a", {"B"}}, {"a", {"C"}}},
       {0, 0, 0}},
      {"--gpus-per-task=2", {{"a", {"A", "B"}}, {"a", {"C", "D"}}, {"a", {"E", "F"}}}, {0, 0, 0}},
      {"the same GPUs in each rank's own order", {{"a", {"A", "B"}}, {"a", {"B", "A"}}}, {0, 0}},
      {"ranks of two hosts in turn",
       {{"a", {"A", "B"}}, {"b", {"C", "D"}}, {"a", {"A", "B"}}, {"b", {"C", "D"}}},
       {0, 0, 1, 1}},
      {"GPUs that CUDA does not name", {{"a", {"", ""}}, {"a", {"", ""}}}, {0, 1}},
      {"containers of one host", {{"pod-1", {"A", "B"}}, {"pod-2", {"A", "B"}}}, {0, 1}},
      {"the same on GPUs that CUDA does not name", {{"a", {""}}, {"b", {""}}}, {0, 0}},
  };
  for (const Case& one : cases) {
    const GpuChoice choice = choose_gpus(ranks(one.sights_N));
    EXPECT_EQ(choice.fault, "") << one.what;
    EXPECT_EQ(choice.index_N, one.index_N) << one.what;
  }
}

TEST(DeviceChoice, TooFewGpusAreNamedWithRankAndHost) {
  const GpuChoice shared = choose_gpus(ranks({{"a", {"A"}}, {"a", {"A"}}}));
  EXPECT_THAT(shared.index_N, IsEmpty());
  EXPECT_THAT(shared.fault, AllOf(HasSubstr("2 ranks on a see the same 1 GPU(s), so rank 1 has"),
                                  HasSubstr("--gpus-per-task=1"), HasSubstr("run.device")));
  EXPECT_THAT(choose_gpus(ranks({{"a", {"A"}}, {"b", {}}})).fault,
              HasSubstr("rank 1 on b has no usable GPU"));
  EXPECT_THAT(choose_gpus(ranks({{"a", {"A", "B"}}, {"a", {"A", "B"}}, {"a", {"A", "B"}}})).fault,
              HasSubstr("3 ranks on a see the same 2 GPU(s), so rank 2 has none"));
}

TEST(DeviceChoice, TwoRanksNeverComputeOnOneGpu) {
  EXPECT_THAT(choose_gpus(ranks({{"a", {"A", "B"}}, {"a", {"A", "C"}}})).fault,
              HasSubstr("ranks 0 and 1 on a would both compute on GPU A"));
  EXPECT_THAT(choose_gpus(ranks({{"pod-1", {"A", "B"}}, {"pod-2", {"A", "C"}}})).fault,
              HasSubstr("would both compute on GPU A"));
}

TEST(DeviceChoice, RanksShareGpusWhereAllMay) {
  std::vector<VisibleGpus> all_N =
      ranks({{"a", {"A", "B"}}, {"a", {"A", "B"}}, {"a", {"A", "B"}}, {"b", {}}});
  for (VisibleGpus& rank : all_N) rank.may_share = true;
  EXPECT_THAT(choose_gpus(all_N).fault, HasSubstr("rank 3 on b has no usable GPU"));
  all_N.pop_back();
  EXPECT_THAT(choose_gpus(all_N).index_N, ElementsAre(0, 1, 0));
  all_N[1].may_share = false;
  EXPECT_THAT(choose_gpus(all_N).fault, HasSubstr("so rank 2 has none"));
}

TEST(DeviceChoice, SharingAsksForTheVariableAndForNccl230) {
  EXPECT_FALSE(ranks_may_share("2.30.7")) << "the variable is not set";
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  EXPECT_TRUE(ranks_may_share("2.30.7"));
  EXPECT_TRUE(ranks_may_share("3.0.1"));
  EXPECT_FALSE(ranks_may_share("2.28.9"));
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "0", 1);
  EXPECT_FALSE(ranks_may_share("2.30.7"));
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

TEST(DeviceChoice, WhatARankSeesComesBackFromItsText) {
  for (const VisibleGpus& one :
       {VisibleGpus{.rank = 2, .node = "a", .ids = {}},
        VisibleGpus{.rank = 2, .node = "b-1", .ids = {"GPU-1", "", "GPU-2"}, .may_share = true}}) {
    const VisibleGpus back = read_visible_gpus(2, text_of(one));
    EXPECT_EQ(back.rank, one.rank);
    EXPECT_EQ(back.node, one.node);
    EXPECT_EQ(back.ids, one.ids);
    EXPECT_EQ(back.may_share, one.may_share);
  }
}

/// CUBLAS_WORKSPACE_CONFIG for one test.
class WorkspaceVariable {
 public:
  explicit WorkspaceVariable(const char* value) {
    value == nullptr ? unsetenv(kName) : setenv(kName, value, 1);
  }
  ~WorkspaceVariable() { unsetenv(kName); }
  static std::string value() {
    const char* found = std::getenv(kName);
    return found == nullptr ? "unset" : found;
  }

 private:
  static constexpr const char* kName = "CUBLAS_WORKSPACE_CONFIG";
};

RunOptions run_with(const std::string& deterministic, const std::string& device = "auto") {
  RunOptions run;
  run.deterministic = deterministic;
  run.device = device;
  return run;
}

TEST(Device, DeterminismTellsCublasSoBeforeItStarts) {
  const at::Device gpu(at::kCUDA, 0);
  {
    const WorkspaceVariable unset(nullptr);
    prepare_deterministic_gpu(run_with("false"));
    prepare_deterministic_gpu(run_with("true", "cpu"));
    EXPECT_EQ(WorkspaceVariable::value(), "unset");
    prepare_deterministic_gpu(run_with("true"));
    EXPECT_EQ(WorkspaceVariable::value(), ":4096:8");
    require_device_keeps_promises(run_with("true"), gpu);
  }
  const WorkspaceVariable small(":16:8");
  prepare_deterministic_gpu(run_with("true"));
  EXPECT_EQ(WorkspaceVariable::value(), ":16:8") << "the environment's own choice stands";
  require_device_keeps_promises(run_with("true"), gpu);
}

std::string refusal(const RunOptions& run, at::Device device) {
  try {
    require_device_keeps_promises(run, device);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "";
}

TEST(Device, WhatAGpuCannotPromiseIsRefused) {
  const at::Device gpu(at::kCUDA, 1);
  EXPECT_THAT(refusal(run_with("elastic"), gpu),
              AllOf(HasSubstr("run.deterministic: elastic"), HasSubstr("NCCL's order"),
                    HasSubstr("set run.device to cpu")));
  EXPECT_EQ(refusal(run_with("elastic"), at::kCPU), "");
  EXPECT_EQ(refusal(run_with("false"), gpu), "");
  const WorkspaceVariable free(":0:0");
  EXPECT_THAT(refusal(run_with("true"), gpu),
              AllOf(HasSubstr("CUBLAS_WORKSPACE_CONFIG"), HasSubstr("':0:0'")));
  EXPECT_EQ(refusal(run_with("true"), at::kCPU), "");
}

}  // namespace device_test
}  // namespace lockstep::daemon
