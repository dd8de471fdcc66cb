// What is asked of gradients on a device with one wait of the host for all of them; the same
// operations on CPU tensors.
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dist/bucket/mean_gradient.h"
#include "dist/bucket/squared_grad_norm.h"
#include "dist/self_communicator.h"

namespace lockstep::dist {
namespace device_checks_test {

TEST(AllFinite, FindsOneBadItemInAnyTensorOfAnyType) {
  SelfCommunicator comm;
  EXPECT_TRUE(all_finite(comm, {}));
  EXPECT_TRUE(all_finite(comm, {at::empty({0})}));
  const auto tensors = [] {
    std::vector<at::Tensor> all;
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
      for (const int64_t size : {1, 0, 1000}) all.push_back(at::full({size}, 3, type));
    return all;
  };
  EXPECT_TRUE(all_finite(comm, tensors()));
  for (const double bad :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()})
    for (size_t i = 0; i < tensors().size(); ++i) {
      const std::vector<at::Tensor> all = tensors();
      if (all[i].numel() == 0) continue;
      all[i][all[i].numel() - 1] = bad;
      EXPECT_FALSE(all_finite(comm, all)) << bad << " in tensor " << i;
    }
}

TEST(AllFinite, LeavesTheValuesAsTheyAre) {
  SelfCommunicator comm;
  const at::Tensor values_4 =
      at::tensor({1e-45, -0.0, 3.4028235e38, 0.1}, at::TensorOptions(at::kDouble)).to(at::kFloat);
  const at::Tensor before_4 = values_4.clone();
  EXPECT_TRUE(all_finite(comm, {values_4}));
  EXPECT_TRUE(values_4.view(at::kInt).equal(before_4.view(at::kInt)));
}

TEST(GradientNorms, AreTheLengthsOfTheRegions) {
  std::vector<FlatBuffer> buffers(2);
  buffers[0].grads_E = at::tensor({3.0, 4.0, 100.0}, at::kFloat);
  buffers[1].grads_E = at::tensor({7.0, 1.0, 2.0, 2.0}, at::kFloat);
  const at::Tensor norms_2 = gradient_norms(
      buffers, {{.buffer = 0, .begin_E = 0, .end_E = 2}, {.buffer = 1, .begin_E = 1, .end_E = 4}});
  EXPECT_TRUE(norms_2.equal(at::tensor({5.0, 3.0}, at::kDouble)));
}

}  // namespace device_checks_test
}  // namespace lockstep::dist
