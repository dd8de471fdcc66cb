#include "dist/nccl/gpu_memory.h"

#include <optional>
#include <utility>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::dist::nccl {
namespace gpu_memory_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kGib = int64_t{1} << 30, kMib = int64_t{1} << 20;

/// A GPU that keeps what it was asked for.
class NotedMemory final : public MemoryCalls {
 public:
  explicit NotedMemory(int64_t free) : free_(free) {}
  Bytes bytes() override { return {.free = free_, .total = 40 * kGib}; }
  void give_back() override { taken_bytes -= std::exchange(kept_bytes, 0); }
  int64_t taken() override { return taken_bytes; }
  GpuMemoryUse use() override { return {.reserved = taken_bytes}; }
  void set_fraction(double fraction) override {
    EXPECT_EQ(taken_bytes, 0) << "the limit comes before what is taken";
    asked_fraction = fraction;
  }
  /// Reserves like LibTorch's allocator: large blocks are rounded up, and the limit applies to the
  /// rounded size.
  void reserve(int64_t num_bytes) override {
    const int64_t rounded = (num_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    const double limit = asked_fraction.value_or(1) * static_cast<double>(40 * kGib);
    TORCH_CHECK(is_sound && static_cast<double>(rounded) <= limit, "CUDA out of memory");
    taken_bytes += rounded;
  }

  bool is_sound = true;
  std::optional<double> asked_fraction;
  int64_t taken_bytes = 0;
  int64_t kept_bytes = 0;  ///< of those, what no tensor is in

 private:
  const int64_t free_;
};

std::string refusal(NotedMemory* gpu, const GpuMemoryOptions& options, ExitCode code) {
  const int64_t before = gpu->taken_bytes;
  try {
    set_up_memory(*gpu, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(gpu->taken_bytes, before);
    return error.what();
  }
  return "";
}

TEST(GpuMemory, ByDefaultNothingIsLimitedAndNothingTaken) {
  NotedMemory gpu(30 * kGib);
  const GpuMemoryFacts facts = set_up_memory(gpu, {});
  EXPECT_EQ(facts.limit, 40 * kGib);
  EXPECT_EQ(facts.reserved, 0);
  EXPECT_EQ(gpu.asked_fraction, std::nullopt);
  EXPECT_EQ(gpu.taken_bytes, 0);
}

TEST(GpuMemory, AShareIsALimitAndAllOfItIsTakenWhereAsked) {
  NotedMemory growing(5 * kGib), taking(30 * kGib), whole(30 * kGib);
  EXPECT_EQ(set_up_memory(growing, {.fraction = 0.25}).limit, 10 * kGib);
  EXPECT_EQ(growing.asked_fraction, 0.25);
  EXPECT_EQ(growing.taken_bytes, 0);
  const GpuMemoryFacts facts = set_up_memory(taking, {.fraction = 0.25, .at_start = true});
  EXPECT_EQ(facts.limit, 10 * kGib);
  EXPECT_EQ(facts.reserved, 10 * kGib - 256 * kMib);  // small tensors come on top
  EXPECT_EQ(taking.asked_fraction, 0.25);
  EXPECT_EQ(taking.taken_bytes, facts.reserved);
  set_up_memory(whole, {.at_start = true});  // what is free, but for what CUDA and NCCL need
  EXPECT_EQ(whole.taken_bytes, 30 * kGib - kBytesBeside - 256 * kMib);
}

TEST(GpuMemory, WhatIsTakenIsWholeBlocksOfTwoMib) {
  NotedMemory odd(30 * kGib), little(30 * kGib), free_is_odd(5 * kGib + 12345);
  const GpuMemoryFacts facts = set_up_memory(odd, {.fraction = 0.3333, .at_start = true});
  EXPECT_EQ(facts.reserved % (2 * kMib), 0);
  EXPECT_LE(facts.reserved, facts.limit - 256 * kMib);
  EXPECT_GT(facts.reserved, facts.limit - 258 * kMib);
  EXPECT_EQ(odd.taken_bytes, facts.reserved);
  EXPECT_EQ(set_up_memory(little, {.fraction = 0.006, .at_start = true}).reserved, 0);  // 245 MiB
  EXPECT_EQ(little.taken_bytes, 0);
  set_up_memory(free_is_odd, {.at_start = true});
  EXPECT_EQ(free_is_odd.taken_bytes, 5 * kGib - kBytesBeside - 256 * kMib);
}

TEST(GpuMemory, WhatTheAllocatorCannotTakeIsUnavailable) {
  NotedMemory gpu(30 * kGib);
  gpu.is_sound = false;
  EXPECT_THAT(refusal(&gpu, {.fraction = 0.25, .at_start = true}, ExitCode::kUnavailable),
              AllOf(HasSubstr("LibTorch's allocator cannot allocate"),
                    HasSubstr("CUDA out of memory"), HasSubstr("gpu.allow_growth: true")));
}

TEST(GpuMemory, AShareThatIsNotFreeIsRefused) {
  NotedMemory few(10 * kGib), none(kBytesBeside);
  EXPECT_THAT(refusal(&few, {.fraction = 0.25, .at_start = true}, ExitCode::kUnavailable),
              HasSubstr("of the GPU's 40960 MiB only 10240 are free"));
  EXPECT_THAT(refusal(&none, {.at_start = true}, ExitCode::kUnavailable),
              HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(GpuMemory, WhatAnEarlierRunOfTheProcessLeftIsGivenBack) {
  NotedMemory gpu(30 * kGib);
  gpu.taken_bytes = gpu.kept_bytes = 3 * kGib;
  EXPECT_EQ(set_up_memory(gpu, {.fraction = 0.5}).limit, 20 * kGib);
  EXPECT_EQ(gpu.taken_bytes, 0);
}

TEST(GpuMemory, AfterMemoryWasTakenItIsTooLate) {
  NotedMemory gpu(30 * kGib);
  set_up_memory(gpu, {.fraction = 0.5, .at_start = true});
  EXPECT_THAT(refusal(&gpu, {.fraction = 0.6}, ExitCode::kConfig), HasSubstr("comes too late"));
  EXPECT_EQ(gpu.asked_fraction, 0.5);
}

}  // namespace gpu_memory_test
}  // namespace lockstep::dist::nccl
