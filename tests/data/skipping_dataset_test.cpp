#include "data/dataset.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"

namespace lockstep::data {
namespace skipping_dataset_test {

/// Sample i is the number 10 i + epoch; those of `damaged` cannot be read.
class Numbers final : public Dataset {
 public:
  explicit Numbers(std::set<int64_t> damaged) : damaged_(std::move(damaged)) {}

  int64_t num_samples() const override { return 6; }
  SampleSpec spec() const override { return {.input_shape = {}, .num_classes = 6}; }
  Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override {
    std::vector<float> inputs;
    std::vector<int64_t> targets;
    for (const int64_t index : indices_B) {
      if (index == 5) throw files::FileChanged(ExitCode::kBadData, "data", "replaced");
      if (index == 4) throw Error(ExitCode::kIo, "data", "a disk");
      if (damaged_.contains(index)) throw Error(ExitCode::kBadData, "data", "file: damaged");
      inputs.push_back(static_cast<float>(10 * index + epoch));
      targets.push_back(index);
    }
    return {at::tensor(inputs, at::kFloat), at::tensor(targets, at::kLong)};
  }
  std::string digest() const override { return "d"; }

 private:
  std::set<int64_t> damaged_;
};

Samples read(const std::set<int64_t>& damaged, InsteadOfDamaged instead,
             const std::vector<int64_t>& indices) {
  return SkippingDataset(std::make_unique<Numbers>(damaged), instead).get(indices, 3);
}

constexpr auto kNext = InsteadOfDamaged::kNextSample, kNothing = InsteadOfDamaged::kNothing;

void expect_samples(const Samples& samples, const std::vector<int64_t>& indices, int64_t skipped) {
  EXPECT_TRUE(samples.targets_BY.equal(at::tensor(indices, at::kLong))) << samples.targets_BY;
  ASSERT_EQ(samples.inputs_BX.size(0), static_cast<int64_t>(indices.size()));
  for (size_t i = 0; i < indices.size(); ++i)
    EXPECT_EQ(samples.inputs_BX.const_data_ptr<float>()[i],
              static_cast<float>(10 * indices[i] + 3));
  EXPECT_EQ(samples.num_skipped, skipped);
}

}  // namespace skipping_dataset_test
using namespace skipping_dataset_test;  // NOLINT(google-build-using-namespace)

TEST(SkippingDataset, TakesTheNextSoundSample) {
  expect_samples(read({}, kNext, {2, 0, 1}), {2, 0, 1}, 0);
  expect_samples(read({1, 2}, kNext, {2, 0, 1}), {3, 0, 3}, 2);
  expect_samples(read({1, 2}, kNext, {}), {}, 0);
}

TEST(SkippingDataset, LeavesDamagedSamplesOut) {
  expect_samples(read({1, 2}, kNothing, {2, 0, 1, 3}), {0, 3}, 2);
  expect_samples(read({1, 2}, kNothing, {2, 1}), {}, 2);
}

TEST(SkippingDataset, DoesNotSkipWhatNoSampleIsToBlameFor) {
  class Gone final : public Dataset {
   public:
    int64_t num_samples() const override { return 6; }
    SampleSpec spec() const override { return {.input_shape = {}, .num_classes = 6}; }
    Samples get(std::span<const int64_t> indices_B, int64_t) const override {
      throw Error(ExitCode::kBadData, "data", indices_B.empty() ? "its worker ended" : "cut");
    }
    std::string digest() const override { return "d"; }
  };
  try {
    (void)SkippingDataset(std::make_unique<Gone>(), kNext).get(std::vector<int64_t>{1, 2}, 0);
    FAIL();
  } catch (const Error& fault) {
    EXPECT_THAT(fault.what(), testing::HasSubstr("its worker ended"));
  }
}

TEST(SkippingDataset, ThrowsWhatIsNoDamageOn) {
  for (const auto& [index, text] :
       {std::pair<int64_t, std::string>{4, "a disk"}, {5, "replaced"}}) {
    try {
      (void)read({1}, kNext, {1, index});
      FAIL();
    } catch (const Error& fault) {
      EXPECT_THAT(fault.what(), testing::HasSubstr(text));
    }
  }
}

}  // namespace lockstep::data
