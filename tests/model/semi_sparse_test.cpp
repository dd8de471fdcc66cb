// Products with 2:4 weights on sparse tensor cores: when they are used, and that they equal dense
// ones. Real figures need a GPU; here the operators are those of a fake device.
#include "model/linear/semi_sparse.h"

#include <array>
#include <cstdlib>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/simd/bit_mask.h"
#include "model/layers.h"
#include "tests/support/fake_semi_sparse.h"

namespace lockstep::model {
namespace semi_sparse_test {

using tests::FakeSemiSparse;

constexpr int64_t kSamples = kLeastSemiSparse + 3;  // not a multiple of 8

/// Bits of a mask that repeats a 4×4 tile.
std::vector<uint8_t> tiled_bits(int64_t num_rows, int64_t num_columns,
                                const std::array<uint8_t, 4>& tile) {
  std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(num_rows * num_columns)));
  for (int64_t item = 0; item < num_rows * num_columns; ++item)
    if ((tile[static_cast<size_t>(item / num_columns % 4)] >> (item % num_columns % 4) & 1) != 0)
      bits[static_cast<size_t>(item / 8)] |= static_cast<uint8_t>(1 << (item % 8));
  return bits;
}

constexpr std::array<uint8_t, 4> kBothWays = {0b0011, 0b1100, 0b0101, 0b1010};
constexpr std::array<uint8_t, 4> kInputsOnly = {0b0011, 0b0011, 0b0011, 0b1100};

TEST(SemiSparse, AMaskMustBe2Of4AlongBothDimensions) {
  const auto holds = [](int64_t rows, int64_t columns, const std::array<uint8_t, 4>& tile) {
    return is_semi_sparse(tiled_bits(rows, columns, tile).data(), rows, columns);
  };
  EXPECT_TRUE(holds(16, 32, kBothWays));
  EXPECT_TRUE(holds(32, 16, {0b0001, 0b0000, 0b0101, 0b1000}));  // fewer
  EXPECT_FALSE(holds(16, 32, kInputsOnly));
  EXPECT_FALSE(holds(16, 32, {0b0111, 0b1000, 0b0101, 0b1010}));
  EXPECT_FALSE(holds(16, 24, kBothWays));
  EXPECT_FALSE(holds(20, 32, kBothWays));
  for (const int64_t item : {0, 17, 16 * 32 - 1}) {  // one more element anywhere is too many
    std::vector<uint8_t> bits = tiled_bits(16, 32, kBothWays);
    int64_t more = item;
    while (is_kept(bits.data(), more)) more = more == 0 ? 2 : more - 1;
    bits[static_cast<size_t>(more / 8)] |= static_cast<uint8_t>(1 << (more % 8));
    EXPECT_FALSE(is_semi_sparse(bits.data(), 16, 32)) << more;
  }
}

/// Layer [48 inputs, 32 outputs] whose weight obeys a mask, with gradient tensors.
struct Layer {
  explicit Layer(const std::array<uint8_t, 4>& tile) {
    at::manual_seed(3);
    Param& weight = table.params[0];
    const std::vector<uint8_t> bits = tiled_bits(32, 48, tile);
    weight.follow_mask(bits.data());
    const at::NoGradGuard no_grad;
    for (int64_t i = 0; i < weight.tensor.numel(); ++i)
      if (!is_kept(bits.data(), i)) weight.tensor.view(-1)[i] = 0;
    for (Param& param : table.params) param.tensor.mutable_grad() = at::zeros_like(param.tensor);
  }
  at::Tensor operator()(const at::Tensor& inputs) {
    at::autocast::set_autocast_dtype(at::kCPU, type);
    at::autocast::set_autocast_enabled(at::kCPU, type != at::kFloat);
    const at::Tensor outputs = linear(inputs);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return outputs;
  }

  LayerTable table;
  Linear linear{"fc", 48, 32, 1, &table};
  at::ScalarType type = at::kBFloat16;
};

struct Found {
  at::Tensor outputs, input_grads, weight_grads, bias_grads;
};
Found found_by(Layer& layer, const at::Tensor& samples) {
  const at::Tensor inputs = samples.clone().set_requires_grad(true);
  const at::Tensor outputs = layer(inputs);
  outputs.backward(at::cos(outputs.detach().to(at::kFloat)).to(outputs.scalar_type()));
  return {outputs.detach(), inputs.grad(), layer.table.params[0].tensor.grad().clone(),
          layer.table.params[1].tensor.grad().clone()};
}

TEST(SemiSparse, ALayerComputesWhatDenseProductsDo) {
  const at::Tensor samples = at::randn({kSamples, 48});
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    Layer dense(kBothWays);  // before the operators exist
    dense.type = type;
    const Found expected = found_by(dense, samples);
    const FakeSemiSparse operators;
    Layer layer(kBothWays);
    layer.type = type;
    EXPECT_EQ(layer.table.num_semi_sparse_changes, 1);
    const Found found = found_by(layer, samples);
    EXPECT_GE(operators.num_products(), 2);  // the first call also tries the device
    const double tolerance = type == at::kHalf ? 4e-3 : 3e-2;
    EXPECT_EQ(found.outputs.scalar_type(), type);
    EXPECT_TRUE(at::allclose(found.outputs, expected.outputs, tolerance, tolerance));
    EXPECT_TRUE(at::allclose(found.input_grads, expected.input_grads, tolerance, tolerance));
    EXPECT_TRUE(at::allclose(found.weight_grads, expected.weight_grads, tolerance, 40 * tolerance));
    EXPECT_TRUE(at::allclose(found.bias_grads, expected.bias_grads, tolerance, 40 * tolerance));
  }
}

TEST(SemiSparse, IsUsedForTrainingInNarrowTypesOnly) {
  const FakeSemiSparse operators;
  const at::Tensor samples = at::randn({kSamples, 48});
  const auto num_products = [&](Layer& layer, const at::Tensor& inputs) {
    (void)found_by(layer, samples);  // tries the device, if that is still due
    const int before = operators.num_products();
    (void)layer(inputs);
    return operators.num_products() - before;
  };
  Layer layer(kBothWays);
  EXPECT_EQ(num_products(layer, samples), 1);
  EXPECT_EQ(num_products(layer, samples.narrow(0, 0, kLeastSemiSparse - 1)), 0);
  EXPECT_EQ(num_products(layer, samples.view({1, kSamples, 48})), 1);
  {
    const at::NoGradGuard no_grad;  // evaluation: LibTorch's bits
    const int before = operators.num_products();
    (void)layer(samples);
    EXPECT_EQ(operators.num_products(), before);
  }
  Layer wide(kBothWays);
  wide.type = at::kFloat;
  EXPECT_EQ(num_products(wide, samples), 0);
  Layer one_way(kInputsOnly);
  EXPECT_EQ(num_products(one_way, samples), 0);
  EXPECT_EQ(one_way.table.num_semi_sparse_changes, 0);
  layer.table.params[0].follow_mask(nullptr);
  EXPECT_EQ(layer.table.num_semi_sparse_changes, 2);
  EXPECT_EQ(num_products(layer, samples), 0);
}

// In a process of its own, since what a device can do is asked once.
TEST(SemiSparseDeathTest, ADeviceThatRefusesGetsDenseProducts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const FakeSemiSparse operators(/*refuses=*/true);
        Layer layer(kBothWays);
        const at::Tensor samples = at::randn({kSamples, 48});
        const bool is_right = at::allclose(
            layer(samples).to(at::kFloat),
            at::linear(samples, layer.table.params[0].tensor, layer.table.params[1].tensor), 3e-2,
            3e-2);
        std::exit(is_right && operators.num_products() == 0 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "cuSPARSELt not supported");
}

TEST(SemiSparse, ADerivativeOfADerivativeIsDense) {
  const FakeSemiSparse operators;
  Layer layer(kBothWays);
  const at::Tensor inputs = at::randn({kSamples, 48}).set_requires_grad(true);
  const at::Tensor outputs = layer(inputs);
  const at::Tensor grads = at::ones_like(outputs).set_requires_grad(true);
  const auto first = torch::autograd::grad({outputs}, {inputs}, {grads}, true, true);
  const auto second = torch::autograd::grad({first[0].sum()}, {grads});
  const at::Tensor expected = layer.table.params[0].tensor.detach().sum(1).expand({kSamples, 32});
  EXPECT_TRUE(at::allclose(second[0].to(at::kFloat), expected, 3e-2, 3e-2));
}

}  // namespace semi_sparse_test
}  // namespace lockstep::model
