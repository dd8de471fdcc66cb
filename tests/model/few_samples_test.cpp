#include "model/linear/few_samples.h"

#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "base/simd/simd.h"

namespace lockstep::model {
namespace few_samples_test {

at::Tensor numbers(at::IntArrayRef shape, double step) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return at::sin(at::arange(count, at::kFloat) * step).view(shape).clone();
}

class FewSamples : public ::testing::Test {
 protected:
  void SetUp() override {
    if (fastest_simd_path() == SimdPath::kPortable) GTEST_SKIP() << "a processor without AVX2";
  }
};

bool are_close(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && at::allclose(one, other, 1e-4, 1e-3);
}

/// Rows and columns around the widths of blocks; the last weight is large enough to be streamed.
TEST_F(FewSamples, ProductsAreThoseOfLibTorch) {
  for (const auto& [num_outputs, num_inputs] : std::vector<std::pair<int64_t, int64_t>>{
           {1024, 1024}, {1031, 1037}, {3, 400'001}, {2056, 2048}})
    for (const int64_t num_samples : {2, 7, 8, 9, 16}) {
      SCOPED_TRACE(::testing::Message() << num_samples << ", " << num_outputs << "x" << num_inputs);
      const at::Tensor weight = numbers({num_outputs, num_inputs}, 1.3);
      const at::Tensor bias = numbers({num_outputs}, 0.4);
      const at::Tensor inputs = numbers({num_samples, num_inputs}, 0.7);
      const at::Tensor grads = numbers({num_samples, num_outputs}, 0.9);
      ASSERT_TRUE(has_few_samples(inputs, weight));
      EXPECT_TRUE(are_close(few_outputs(inputs, weight, bias), at::linear(inputs, weight, bias)));
      EXPECT_TRUE(are_close(few_outputs(inputs, weight, {}), at::linear(inputs, weight)));
      EXPECT_TRUE(are_close(few_input_grads(grads, weight), grads.mm(weight)));
      const at::Tensor expected = grads.t().mm(inputs);
      at::Tensor grad = at::full_like(weight, 3);
      write_few_grads(grads, inputs, /*adds=*/false, {0, num_outputs}, grad);
      EXPECT_TRUE(are_close(grad, expected));
      at::Tensor in_parts = at::full_like(weight, 3);
      for (const Rows& rows : {Rows{0, 1}, Rows{1, num_outputs}})
        write_few_grads(grads, inputs, /*adds=*/false, rows, in_parts);
      EXPECT_TRUE(in_parts.equal(grad));
      write_few_grads(grads, inputs, /*adds=*/true, {0, num_outputs}, grad);
      EXPECT_TRUE(are_close(grad, expected * 2));
    }
}

TEST_F(FewSamples, ThreadsAgreeInEveryBit) {
  const int num_threads = at::get_num_threads();
  const at::Tensor weight = numbers({1031, 1037}, 1.3), inputs = numbers({5, 1037}, 0.7);
  const at::Tensor grads = numbers({5, 1031}, 0.9);
  std::vector<std::vector<at::Tensor>> found;
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    at::Tensor grad = at::zeros_like(weight);
    write_few_grads(grads, inputs, /*adds=*/false, {0, 1031}, grad);
    found.push_back({few_outputs(inputs, weight, {}), few_input_grads(grads, weight), grad});
  }
  at::set_num_threads(num_threads);
  for (const std::vector<at::Tensor>& each : found)
    for (size_t i = 0; i < each.size(); ++i) EXPECT_TRUE(each[i].equal(found.front()[i])) << i;
}

TEST_F(FewSamples, OtherShapesTypesAndOrdersAreLeftToLibTorch) {
  const at::Tensor weight = at::zeros({1024, 1024});
  EXPECT_TRUE(has_few_samples(at::zeros({16, 1024}), weight));
  EXPECT_FALSE(has_few_samples(at::zeros({17, 1024}), weight));
  EXPECT_FALSE(has_few_samples(at::zeros({1, 1024}), weight));
  EXPECT_FALSE(has_few_samples(at::zeros({8, 1024}), at::zeros({1023, 1024}))) << "small";
  EXPECT_FALSE(has_few_samples(at::zeros({1024, 8}).t(), weight)) << "not contiguous";
  EXPECT_FALSE(has_few_samples(at::zeros({8, 1024}), weight.t()));
  EXPECT_FALSE(has_few_samples(at::zeros({8, 1024}), weight.to(at::kDouble)));
  EXPECT_FALSE(has_few_samples(at::zeros({8, 1024}, at::kBFloat16), weight.to(at::kBFloat16)));
}

}  // namespace few_samples_test
}  // namespace lockstep::model
