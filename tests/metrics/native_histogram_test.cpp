#include "metrics/native_histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::metrics {
namespace native_histogram_test {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

uint64_t count_of(const std::map<int, uint64_t>& buckets) {
  return std::accumulate(buckets.begin(), buckets.end(), uint64_t{0},
                         [](uint64_t sum, const auto& bucket) { return sum + bucket.second; });
}

/// Upper bound of a bucket.
double bound_of(int index, int schema) { return std::exp2(std::ldexp(index, -schema)); }

/// Value that Prometheus reads from the buckets for a quantile: the bound of its bucket.
double quantile_of(const HistogramSample& sample, double quantile) {
  const double rank = quantile * static_cast<double>(sample.classic.sample_count);
  uint64_t count = sample.num_zeros;
  for (const auto& [index, in_bucket] : sample.positive)
    if (static_cast<double>(count += in_bucket) >= rank) return bound_of(index, sample.schema);
  return kInfinity;
}

TEST(NativeHistogram, PowersOfTwoAreBoundsOfTheirBuckets) {
  for (const int exponent : {-1000, -100, -1, 0, 1, 7, 1000}) {
    NativeHistogram histogram({});
    const double bound = std::ldexp(1.0, exponent);
    histogram.observe(bound);
    histogram.observe(std::nextafter(bound, kInfinity));
    const HistogramSample sample = histogram.collect();
    if (bound <= NativeHistogram::kZeroThreshold) {
      EXPECT_EQ(sample.num_zeros, 2u);
      continue;
    }
    EXPECT_THAT(sample.positive, ElementsAre(Pair(16 * exponent, 1), Pair(16 * exponent + 1, 1)));
  }
}

TEST(NativeHistogram, EachValueLiesBetweenTheBoundsOfItsBucket) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> exponent(-80, 80);
  for (int i = 0; i < 2000; ++i) {
    const double value = std::exp2(exponent(random));
    NativeHistogram histogram({});
    histogram.observe(value);
    const auto [index, count] = *histogram.collect().positive.begin();
    EXPECT_LE(value, bound_of(index, 4) * (1 + 1e-12));
    EXPECT_GT(value, bound_of(index - 1, 4) * (1 - 1e-12));
  }
}

TEST(NativeHistogram, WhatIsNotPositiveIsCountedToo) {
  NativeHistogram histogram({1});
  for (const double value : {0.0, -0.0, 1e-300, -1.0, -2.0, -2.0, kInfinity, -kInfinity})
    histogram.observe(value);
  HistogramSample sample = histogram.collect();
  EXPECT_EQ(sample.classic.sample_count, 8u);
  EXPECT_EQ(sample.num_zeros, 3u);
  EXPECT_THAT(sample.negative, ElementsAre(Pair(0, 1), Pair(16, 2), Pair(16 * 1024 + 1, 1)));
  EXPECT_THAT(sample.positive, ElementsAre(Pair(16 * 1024 + 1, 1)));
  histogram.observe(std::numeric_limits<double>::quiet_NaN());
  sample = histogram.collect();
  EXPECT_EQ(sample.classic.sample_count, 9u);
  EXPECT_TRUE(std::isnan(sample.classic.sample_sum));
  EXPECT_EQ(count_of(sample.positive) + count_of(sample.negative) + sample.num_zeros, 8u);
}

TEST(NativeHistogram, ClassicBucketsAreCumulativeAndHoldTheirNewestExemplar) {
  NativeHistogram histogram({0.5, 1, 4});
  histogram.observe(0.5, 1);
  histogram.observe(0.2, 2);
  histogram.observe(2);
  histogram.observe(9, 3);
  const HistogramSample sample = histogram.collect();
  std::vector<std::pair<double, uint64_t>> buckets;
  for (const auto& bucket : sample.classic.bucket)
    buckets.emplace_back(bucket.upper_bound, bucket.cumulative_count);
  EXPECT_THAT(buckets, ElementsAre(Pair(0.5, 2), Pair(1, 2), Pair(4, 3), Pair(kInfinity, 4)));
  ASSERT_TRUE(sample.exemplars[0] && sample.exemplars[3]);
  EXPECT_EQ(sample.exemplars[0]->step, 2);
  EXPECT_EQ(sample.exemplars[0]->value, 0.2);
  EXPECT_GT(sample.exemplars[0]->time_s, 1.7e9);
  EXPECT_EQ(sample.exemplars[3]->step, 3);
  EXPECT_FALSE(sample.exemplars[1] || sample.exemplars[2]);
}

TEST(NativeHistogram, TooManyBucketsAreMergedAndNoValueIsLost) {
  NativeHistogram histogram({}, 20);
  NativeHistogram whole({}, 1 << 20);
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(-60, 60);
  for (int i = 0; i < 3000; ++i) {
    const double value = (i % 3 == 0 ? -1 : 1) * std::exp2(exponent(random));
    histogram.observe(value);
    whole.observe(value);
  }
  const HistogramSample few = histogram.collect(), all = whole.collect();
  EXPECT_LT(few.schema, all.schema);
  EXPECT_LE(few.positive.size() + few.negative.size(), 20u);
  // Each merged bucket holds what the fine buckets within its bounds hold.
  const int factor = 1 << (all.schema - few.schema);
  for (const auto& [coarse, fine] :
       {std::pair{few.positive, all.positive}, {few.negative, all.negative}}) {
    std::map<int, uint64_t> wanted;
    for (const auto& [index, count] : fine)
      wanted[static_cast<int>(std::ceil(static_cast<double>(index) / factor))] += count;
    EXPECT_EQ(coarse, wanted);
  }
}

TEST(NativeHistogram, TheCoarsestBucketsAreNotMergedFurther) {
  NativeHistogram histogram({}, 1);
  for (const double value : {1e-30, 1.0, 1e30}) histogram.observe(value);
  EXPECT_EQ(histogram.collect().schema, NativeHistogram::kMinSchema);
  EXPECT_EQ(histogram.collect().positive.size(), 3u);
}

TEST(NativeHistogram, QuantilesOfStepTimesAreKnownToFivePerCent) {
  std::mt19937 random(11);
  for (const double spread : {0.05, 0.5, 2.0}) {
    std::lognormal_distribution<double> step_s(-3, spread);
    NativeHistogram histogram({});
    std::vector<double> values(10000);
    for (double& value : values) histogram.observe(value = step_s(random));
    std::sort(values.begin(), values.end());
    for (const double quantile : {0.5, 0.9, 0.99, 0.999}) {
      const double wanted = values[static_cast<size_t>(quantile * 10000) - 1];
      EXPECT_NEAR(quantile_of(histogram.collect(), quantile) / wanted, 1, 0.05);
    }
  }
}

TEST(NativeHistogram, ManyThreadsObserveWhileOneCollects) {
  NativeHistogram histogram({0.1});
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 1; i <= 20000; ++i) histogram.observe(1e-4 * i, i);
    });
  for (int i = 0; i < 100; ++i) {
    const HistogramSample sample = histogram.collect();
    EXPECT_EQ(count_of(sample.positive), sample.classic.sample_count);
    EXPECT_EQ(sample.classic.bucket.back().cumulative_count, sample.classic.sample_count);
  }
  threads.clear();
  EXPECT_EQ(count_of(histogram.collect().positive), 80000u);
}

}  // namespace native_histogram_test
}  // namespace lockstep::metrics
