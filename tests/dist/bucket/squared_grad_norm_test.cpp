#include "dist/reducer/step_stats.h"

#include <cmath>
#include <limits>
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace squared_grad_norm_test {

double sum_of(const std::vector<double>& numbers) {
  Superaccumulator sum;
  for (const double number : numbers) sum.add(number);
  return sum.value();
}

TEST(Superaccumulator, OfFewNumbers) {
  EXPECT_EQ(sum_of({}), 0);
  EXPECT_EQ(sum_of({0.0, -0.0}), 0);
  EXPECT_EQ(sum_of({1.5}), 1.5);
  EXPECT_EQ(sum_of({0.1, 0.2}), 0.1 + 0.2);
  for (const double number :
       {5e-324, 1e-310, 2.2250738585072014e-308, 1.0, 1e100, std::numeric_limits<double>::max()})
    EXPECT_EQ(sum_of({number}), number);
}

TEST(Superaccumulator, LosesNothingSmall) {
  // 2^53 + 1 + 1: each 1 alone would be lost
  EXPECT_EQ(sum_of({0x1p53, 1, 1}), 0x1p53 + 2);
  EXPECT_EQ(sum_of({1, 0x1p53, 1}), 0x1p53 + 2);
  EXPECT_EQ(sum_of(std::vector<double>(1 << 20, 0x1p-30)), 0x1p-10);
}

TEST(Superaccumulator, DoesNotDependOnOrderOrGrouping) {
  std::mt19937_64 random(7);
  std::vector<double> numbers;
  for (int i = 0; i < 3000; ++i)
    numbers.push_back(
        std::ldexp(static_cast<double>(random() >> 11), static_cast<int>(random() % 120) - 60));
  const double expected = sum_of(numbers);
  double plain = 0;
  for (const double number : numbers) plain += number;
  EXPECT_NEAR(expected / plain, 1, 1e-12);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(numbers.begin(), numbers.end(), random);
    EXPECT_EQ(sum_of(numbers), expected);
    std::array<Superaccumulator, 3> parts;
    for (size_t i = 0; i < numbers.size(); ++i) parts[i * i % 3].add(numbers[i]);
    for (size_t i = 0; i < Superaccumulator::kNumCounters; ++i)
      parts[0].counters()[i] += parts[1].counters()[i] + parts[2].counters()[i];
    EXPECT_EQ(parts[0].value(), expected);
  }
}

TEST(Superaccumulator, RemembersWhatIsNotFinite) {
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isnan(sum_of({1, infinite})));
  EXPECT_TRUE(std::isnan(sum_of({std::nan(""), 1})));
  Superaccumulator sum;
  EXPECT_THROW(sum.add(-1), Error);
}

FlatBuffer buffer_of(const std::vector<int64_t>& sizes, at::ScalarType dtype = at::kFloat) {
  FlatBuffer buffer;
  int64_t offset_E = 0;
  for (const int64_t size : sizes) {
    buffer.slices.push_back({static_cast<int64_t>(buffer.slices.size()), offset_E, size});
    offset_E += size;
  }
  buffer.grads_E = at::sin(at::arange(offset_E, at::kDouble) * 1.3).mul(3).to(dtype);
  return buffer;
}

double squares_of(const FlatBuffer& buffer, const std::vector<ParamShard>& regions,
                  const std::vector<int64_t>& rows) {
  Superaccumulator sum;
  for (const ParamShard& region : regions) add_squares(buffer.grads_E, buffer, region, rows, &sum);
  return sum.value();
}

TEST(SquareSum, OfWholeNumbersIsExact) {
  FlatBuffer buffer = buffer_of({60, 40});
  buffer.grads_E = at::arange(100, at::kFloat);
  EXPECT_EQ(squares_of(buffer, {{0, 0, 100}}, {7, 1}), 99.0 * 100 * 199 / 6);
  EXPECT_EQ(squares_of(buffer, {{0, 0, 0}}, {7, 1}), 0);
  EXPECT_EQ(squares_of(buffer, {{0, 59, 61}}, {7, 1}), 59.0 * 59 + 60 * 60);
}

TEST(SquareSum, IsThatOfTheValuesInEveryType) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const FlatBuffer buffer = buffer_of({3000, 500}, dtype);
    const double expected = buffer.grads_E.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(squares_of(buffer, {{0, 0, 3500}}, {30, 1}) / expected, 1, 1e-13);
    EXPECT_NEAR(squares_of(buffer, {{0, 0, 3500}}, {}) / expected, 1, 1e-13);
  }
}

/// Rows of 1500 elements are two units each.
TEST(SquareSum, DoesNotDependOnTheRegions) {
  const FlatBuffer buffer = buffer_of({4500, 40, 17});
  const std::vector<int64_t> rows{1500, 8, 1};
  const double expected = squares_of(buffer, {{0, 0, 4557}}, rows);
  EXPECT_EQ(squares_of(buffer, {{0, 3000, 4557}, {0, 0, 3000}}, rows), expected);
  EXPECT_EQ(
      squares_of(buffer, {{0, 0, 1024}, {0, 1024, 1500}, {0, 1500, 2524}, {0, 2524, 4557}}, rows),
      expected);
  EXPECT_EQ(squares_of(buffer, {{0, 4545, 4557}, {0, 4516, 4545}, {0, 0, 4516}}, rows), expected);
}

TEST(SquareSum, IsJoinedOverRanks) {
  for (const int num_ranks : {1, 2, 3})
    tests::run_ranks(num_ranks, [](Communicator& comm) {
      const FlatBuffer buffer = buffer_of({5'000});
      const int64_t num_rows = 500, r = comm.rank(), n = comm.world_size();
      Superaccumulator sum;
      add_squares(buffer.grads_E, buffer, {0, num_rows * r / n * 10, num_rows * (r + 1) / n * 10},
                  {10}, &sum);
      std::array<int64_t, 2> flags{1, r};
      join_over_ranks(comm, &sum, flags);
      EXPECT_EQ(sum.value(), squares_of(buffer, {{0, 0, 5'000}}, {10}));
      EXPECT_EQ(flags[0], n);
      EXPECT_EQ(flags[1], n * (n - 1) / 2);
    });
}

}  // namespace squared_grad_norm_test
}  // namespace lockstep::dist
