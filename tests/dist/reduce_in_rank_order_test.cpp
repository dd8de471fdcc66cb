#include "dist/tensor_math.h"

#include <cstring>
#include <functional>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep::dist {
namespace reduce_in_rank_order_test {

/// More than a block, and not a multiple of one.
constexpr int64_t kItems = 2500;

at::Tensor contribution(int rank, at::ScalarType dtype) {
  const at::Tensor k = at::arange(kItems, at::kDouble) + 777.0 * rank;
  return ((k * 0.731).sin() * (k * 1.37).cos().mul(6).exp2()).to(dtype);
}

/// The sum over ranks [begin, end) as the tree has it, in float32 or float64.
at::Tensor tree_sum(int begin, int end, at::ScalarType dtype) {
  if (end - begin == 1) return contribution(begin, dtype).to(accumulator_of(dtype));
  int half = 1;
  while (2 * half < end - begin) half *= 2;
  return tree_sum(begin, begin + half, dtype) + tree_sum(begin + half, end, dtype);
}

std::vector<const std::byte*> bytes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<const std::byte*> all;
  for (const at::Tensor& one : tensors)
    all.push_back(static_cast<const std::byte*>(one.const_data_ptr()));
  return all;
}

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

void expect_same_bits(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  EXPECT_EQ(std::memcmp(actual.const_data_ptr(), expected.const_data_ptr(), actual.nbytes()), 0);
}

class RankOrder : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(RankOrder, IsATreeOverAnyNumberOfRanks) {
  for (int num_ranks = 1; num_ranks <= 9; ++num_ranks) {
    SCOPED_TRACE(num_ranks);
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < num_ranks; ++r) inputs.push_back(contribution(r, GetParam()));
    const at::Tensor out = at::empty_like(inputs[0]), also = at::empty_like(out);
    reduce_in_rank_order(bytes_of(inputs), bytes_of(out), kItems, GetParam(), ReduceOp::kSum,
                         bytes_of(also));
    const at::Tensor expected = tree_sum(0, num_ranks, GetParam()).to(GetParam());
    expect_same_bits(out, expected);
    expect_same_bits(also, expected);
  }
}

TEST_P(RankOrder, TheResultMayGoOverAnyInput) {
  for (int target = 0; target < 5; ++target) {
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < 5; ++r) inputs.push_back(contribution(r, GetParam()));
    reduce_in_rank_order(bytes_of(inputs), bytes_of(inputs[target]), kItems, GetParam(),
                         ReduceOp::kSum);
    expect_same_bits(inputs[target], tree_sum(0, 5, GetParam()).to(GetParam()));
  }
}

/// Seven ranks as 0-3, 4-5 and 6: any cut along the tree gives the same bits.
TEST_P(RankOrder, PartialSumsGiveTheSameBits) {
  const at::ScalarType dtype = GetParam(), wide = accumulator_of(dtype);
  const std::vector<int> cuts{0, 4, 6, 7};
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    std::vector<at::Tensor> inputs;
    std::vector<int> ranks;
    for (int r = cuts[i]; r < cuts[i + 1]; ++r) {
      inputs.push_back(contribution(r, dtype));
      ranks.push_back(r);
    }
    ranks.push_back(cuts[i + 1]);
    parts.push_back(at::empty({kItems}, wide));
    reduce_parts({bytes_of(inputs), ranks}, bytes_of(parts.back()), kItems, dtype, wide,
                 ReduceOp::kSum);
  }
  const at::Tensor out = at::empty({kItems}, dtype);
  reduce_parts({bytes_of(parts), cuts}, bytes_of(out), kItems, wide, dtype, ReduceOp::kSum);
  expect_same_bits(out, tree_sum(0, 7, dtype).to(dtype));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RankOrder,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf),
                         [](const auto& dtype) { return c10::toString(dtype.param); });

}  // namespace reduce_in_rank_order_test
}  // namespace lockstep::dist
