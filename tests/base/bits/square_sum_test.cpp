#include "base/simd/square_sum.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/exact_numbers.h"

namespace lockstep {
namespace square_sum_test {

std::vector<float> numbers(size_t num) {
  std::vector<float> all(num);
  for (size_t i = 0; i < num; ++i)
    all[i] = std::sin(static_cast<float>(i * i)) * std::pow(10.0F, static_cast<float>(i % 9));
  return all;
}

TEST(SquareSum, IsTheSameBitsOnEveryPathForEveryLength) {
  const std::vector<float> all = numbers(1100);
  for (const int64_t num : {0, 1, 2, 7, 15, 16, 17, 31, 33, 64, 1000, 1099}) {
    long double sum = 0;
    for (int64_t i = 0; i < num; ++i) {
      const long double item = all[static_cast<size_t>(i + 1)];
      sum += item * item;
    }
    const double first = square_sum(all.data() + 1, num, SimdPath::kPortable);
    EXPECT_NEAR(first, static_cast<double>(sum), 1e-13 * static_cast<double>(sum)) << num;
    for (const SimdPath path : simd_paths())
      EXPECT_EQ(square_sum(all.data() + 1, num, path), first) << name_of(path) << ' ' << num;
  }
}

TEST(SquareSum, KeepsWhatIsNotFinite) {
  std::vector<float> all = numbers(40);
  all[21] = std::numeric_limits<float>::infinity();
  for (const SimdPath path : simd_paths())
    EXPECT_EQ(square_sum(all.data(), 40, path), std::numeric_limits<double>::infinity());
  all[3] = std::numeric_limits<float>::quiet_NaN();
  for (const SimdPath path : simd_paths())
    EXPECT_TRUE(std::isnan(square_sum(all.data(), 40, path)));
}

/// 1e30 swallows 1 in float64; the sum of two sums is that of all numbers.
TEST(Superaccumulator, AddsSumsExactly) {
  Superaccumulator left, right, all;
  for (const double number : {1e30, 1.0, 1e-300}) left.add(number), all.add(number);
  for (const double number : {1.0, 3e30, 0.25}) right.add(number), all.add(number);
  for (size_t i = 0; i < left.counters().size(); ++i)  // as an all-reduce joins them
    left.counters()[i] += right.counters()[i];
  EXPECT_THAT(left.counters(), testing::ElementsAreArray(all.counters()));
  EXPECT_EQ(left.value(), all.value());
}

}  // namespace square_sum_test
}  // namespace lockstep
