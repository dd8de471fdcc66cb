#include "base/tensors/square_sums.h"

#include <cmath>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace square_sums_test {

double squares_of(const at::Tensor& values_E) {
  Superaccumulator sum;
  add_squares(values_E, FlatSlice{.num_elements = values_E.numel()}, kCutElements,
              {0, 0, values_E.numel()}, &sum);
  return sum.value();
}

/// Numbers that float16 and bfloat16 hold, of squares so far apart that another order of the sum
/// gives other bits.
at::Tensor wide_numbers(int64_t num) {
  at::Tensor values_E = at::empty({num});
  auto* const values = values_E.mutable_data_ptr<float>();
  for (int64_t i = 0; i < num; ++i)
    values[i] = std::ldexp(static_cast<float>(100 + i % 97), static_cast<int>(i * i % 29) - 21);
  return values_E;
}

TEST(AddSquares, GivesTheSameBitsForEveryTypeThatHoldsTheNumbers) {
  for (const int64_t num : {0, 1, 2, 15, 16, 17, 31, 33, 1000, 1024, 3000}) {
    const at::Tensor floats_E = wide_numbers(num);
    for (const at::ScalarType type : {at::kDouble, at::kHalf, at::kBFloat16}) {
      ASSERT_TRUE(floats_E.to(type).to(at::kFloat).equal(floats_E)) << type;
      EXPECT_EQ(squares_of(floats_E.to(type)), squares_of(floats_E)) << type << ' ' << num;
    }
  }
  EXPECT_EQ(squares_of(wide_numbers(1).to(at::kHalf)), std::ldexp(1e4, -42));
}

}  // namespace square_sums_test
}  // namespace lockstep
