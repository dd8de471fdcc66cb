#include "dist/nccl/gpu_memory.h"

#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::dist::nccl {
namespace gpu_memory_test {

using ::testing::HasSubstr;

constexpr int64_t kGib = int64_t{1} << 30;

/// A GPU that keeps what it was asked for.
class NotedMemory final : public MemoryCalls {
 public:
  explicit NotedMemory(int64_t free) : free_(free) {}
  Bytes bytes() override { return {.free = free_, .total = 40 * kGib}; }
  int64_t taken() override { return taken_bytes; }
  void set_fraction(double fraction) override {
    EXPECT_EQ(taken_bytes, 0) << "the limit comes before what is taken";
    asked_fraction = fraction;
  }
  void reserve(int64_t num_bytes) override { taken_bytes += num_bytes; }

  std::optional<double> asked_fraction;
  int64_t taken_bytes = 0;

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
  EXPECT_EQ(set_up_memory(taking, {.fraction = 0.25, .at_start = true}).reserved, 10 * kGib);
  EXPECT_EQ(taking.asked_fraction, 0.25);
  EXPECT_EQ(taking.taken_bytes, 10 * kGib);
  set_up_memory(whole, {.at_start = true});  // what is free, but for what CUDA and NCCL need
  EXPECT_EQ(whole.taken_bytes, 30 * kGib - kBytesBeside);
}

TEST(GpuMemory, AShareThatIsNotFreeIsRefused) {
  NotedMemory few(10 * kGib), none(kBytesBeside);
  EXPECT_THAT(refusal(&few, {.fraction = 0.25, .at_start = true}, ExitCode::kUnavailable),
              HasSubstr("of the GPU's 40960 MiB only 10240 are free"));
  EXPECT_THAT(refusal(&none, {.at_start = true}, ExitCode::kUnavailable),
              HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(GpuMemory, AfterMemoryWasTakenItIsTooLate) {
  NotedMemory gpu(30 * kGib);
  set_up_memory(gpu, {.fraction = 0.5, .at_start = true});
  EXPECT_THAT(refusal(&gpu, {.fraction = 0.6}, ExitCode::kConfig), HasSubstr("comes too late"));
  EXPECT_EQ(gpu.asked_fraction, 0.5);
}

}  // namespace gpu_memory_test
}  // namespace lockstep::dist::nccl
