// Checks of gradients on a device with one wait of the host for all of them; here the same
// operations run on CPU tensors.
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dist/communicator.h"
#include "dist/reducer/step_stats.h"
#include "dist/tensor_math.h"

namespace lockstep::dist {
namespace device_checks_test {

bool all_finite(const std::vector<at::Tensor>& tensors) {
  return std::isfinite(largest_of_all(at::kCPU, tensors).item<double>());
}

TEST(LargestOfAll, FindsOneBadItemInAnyTensorOfAnyType) {
  EXPECT_TRUE(all_finite({}));
  EXPECT_TRUE(all_finite({at::empty({0})}));
  const auto tensors = [] {
    std::vector<at::Tensor> all;
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
      for (const int64_t size : {1, 0, 1000}) all.push_back(at::full({size}, 3, type));
    return all;
  };
  EXPECT_TRUE(all_finite(tensors()));
  for (const double bad :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()})
    for (size_t i = 0; i < tensors().size(); ++i) {
      const std::vector<at::Tensor> all = tensors();
      if (all[i].numel() == 0) continue;
      all[i][all[i].numel() - 1] = bad;
      EXPECT_FALSE(all_finite(all)) << bad << " in tensor " << i;
    }
}

TEST(LargestOfAll, LeavesTheValuesAsTheyAre) {
  const at::Tensor values_4 =
      at::tensor({1e-45, -0.0, 3.4028235e38, 0.1}, at::TensorOptions(at::kDouble)).to(at::kFloat);
  const at::Tensor before_4 = values_4.clone();
  EXPECT_TRUE(all_finite({values_4}));
  EXPECT_TRUE(values_4.view(at::kInt).equal(before_4.view(at::kInt)));
}

TEST(LargestMagnitude, IsInfiniteWhereAFloatIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor values_K = at::sin(at::arange(300001, at::kFloat)) * 1e-8;
  EXPECT_EQ(largest_magnitude(values_K), values_K.abs().max().item<double>());
  EXPECT_EQ(largest_magnitude(values_K.narrow(0, 0, 0)), 0);
  EXPECT_EQ(largest_magnitude(at::tensor({-5e-9F, 3e-9F})), static_cast<double>(5e-9F));
  for (const double bad : {std::nan(""), infinity, -infinity})
    EXPECT_EQ(largest_magnitude(at::full({2}, bad, at::kFloat)), infinity) << bad;
}

TEST(GradientNorms, AreTheLengthsOfTheRegions) {
  std::vector<FlatBuffer> buffers(2);
  buffers[0].grads_E = at::tensor({3.0, 4.0, 100.0}, at::kFloat);
  buffers[1].grads_E = at::tensor({7.0, 1.0, 2.0, 2.0}, at::kFloat);
  const at::Tensor norms_2 = gradient_norms(
      buffers, {{.buffer = 0, .begin_E = 0, .end_E = 2}, {.buffer = 1, .begin_E = 1, .end_E = 4}});
  EXPECT_TRUE(norms_2.equal(at::tensor({5.0, 3.0}, at::kDouble)));
}

TEST(StepNumbers, TakeALossThatIsStillToBeComputed) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const double loss : {2.5, infinity, nan}) {
    const LocalStepStats here{.loss_sum = loss, .num_samples = 4, .finite = std::isfinite(loss)};
    LocalStepStats there{.num_samples = 4};
    there.loss_sum_on_device = at::full({}, loss, at::kDouble);
    const GlobalStepStats told = decode_stats(encode_stats(there, at::kCPU));
    const GlobalStepStats wanted = decode_stats(encode_stats(here, at::kCPU));
    EXPECT_EQ(std::isnan(loss), std::isnan(told.loss_mean));
    if (!std::isnan(loss)) {
      EXPECT_EQ(told.loss_mean, wanted.loss_mean);
    }
    EXPECT_EQ(told.num_nonfinite_ranks, wanted.num_nonfinite_ranks);
    EXPECT_EQ(told.num_nonfinite_ranks, std::isfinite(loss) ? 0 : 1);
  }
  const LocalStepStats none{};  // a rank without samples
  EXPECT_EQ(decode_stats(encode_stats(none, at::kCPU) +
                         encode_stats({.loss_sum = 3, .num_samples = 2}, at::kCPU))
                .loss_mean,
            1.5);
}

/// Verdict of the device before the host knows it: equal to the verdict of the host.
TEST(StepNumbers, TheDeviceRefusesWhatTheHostDoesNotCount) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (const double loss : {0.0, 2.5, infinity, -infinity, nan})
    for (const double largest : {0.0, 3e38, infinity, nan})
      for (const bool has_left : {false, true}) {
        const LocalStepStats share{.loss_sum_on_device = at::full({}, loss, at::kDouble),
                                   .num_samples = has_left ? 0 : 4,
                                   .has_left = has_left};
        const at::Tensor sums_V = encode_stats({.loss_sum = 1, .num_samples = 4}, at::kCPU) +
                                  encode_stats(share, at::kCPU);
        const at::Tensor largest_1 = at::full({1}, largest, at::kFloat);
        GlobalStepStats totals = decode_stats(sums_V);
        totals.is_complete = totals.num_samples == 8;
        totals.gradients_finite = std::isfinite(largest_1.item<double>());
        EXPECT_EQ(found_inf(sums_V, largest_1).item<float>(), totals.finite() ? 0 : 1)
            << loss << " " << largest << " " << has_left;
      }
}

}  // namespace device_checks_test
}  // namespace lockstep::dist
