#include "metrics/native_histogram.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "metrics/samples.h"

// The index of a native bucket is found from the value's exponent and a table of the bounds between
// 1/2 and 1. A logarithm would be slower and may miss a bound by one rounding.
namespace lockstep::metrics {
namespace {

constexpr size_t kBoundsPerPower = size_t{1} << NativeHistogram::kMaxSchema;

/// Bounds of the finest schema in [1/2, 1): 2^(i/16 - 1).
std::array<double, kBoundsPerPower> make_bounds() {
  std::array<double, kBoundsPerPower> bounds{};
  for (size_t i = 0; i < bounds.size(); ++i)
    bounds[i] = std::exp2(static_cast<double>(i) / static_cast<double>(bounds.size()) - 1);
  return bounds;
}

/// Returns the index after one merge: the buckets 2i - 1 and 2i become i.
int merged_index(int index) { return (index + 1) >> 1; }

/// Returns the index of a positive finite value's bucket.
int index_of(double value, int schema) {
  static const std::array<double, kBoundsPerPower> kBounds = make_bounds();
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // in [1/2, 1)
  const auto at = std::lower_bound(kBounds.begin(), kBounds.end(), fraction) - kBounds.begin();
  int index = (exponent - 1) * static_cast<int>(kBoundsPerPower) + static_cast<int>(at);
  for (int i = NativeHistogram::kMaxSchema; i > schema; --i) index = merged_index(index);
  return index;
}

std::map<int, uint64_t> merged(const std::map<int, uint64_t>& buckets) {
  std::map<int, uint64_t> all;
  for (const auto& [index, count] : buckets) all[merged_index(index)] += count;
  return all;
}

}  // namespace

NativeHistogram::NativeHistogram(std::vector<double> bounds, size_t max_buckets)
    : bounds_(std::move(bounds)), max_buckets_(max_buckets) {
  sample_.schema = kMaxSchema;
  sample_.zero_threshold = kZeroThreshold;
  for (const double bound : bounds_) sample_.classic.bucket.push_back({0, bound});
  sample_.classic.bucket.push_back({0, std::numeric_limits<double>::infinity()});
  sample_.exemplars.resize(sample_.classic.bucket.size());
}

void NativeHistogram::observe(double value, std::optional<int64_t> step) {
  // NaN is in the last bucket, as in Prometheus' client libraries.
  const auto at =
      std::find_if(bounds_.begin(), bounds_.end(), [=](double bound) { return value <= bound; }) -
      bounds_.begin();
  const std::lock_guard lock(mutex_);
  ++sample_.classic.sample_count;
  sample_.classic.sample_sum += value;
  ++sample_.classic.bucket[static_cast<size_t>(at)].cumulative_count;
  if (step) sample_.exemplars[static_cast<size_t>(at)] = Exemplar{*step, value, unix_time_s()};
  if (!std::isnan(value)) count_natively(value);
}

void NativeHistogram::count_natively(double value) {
  const double size = std::abs(value);
  if (size <= kZeroThreshold) {
    ++sample_.num_zeros;
    return;
  }
  // An infinite value is in the bucket after that of the largest finite one.
  const int index = std::isinf(size)
                        ? index_of(std::numeric_limits<double>::max(), sample_.schema) + 1
                        : index_of(size, sample_.schema);
  ++(value > 0 ? sample_.positive : sample_.negative)[index];
  while (sample_.positive.size() + sample_.negative.size() > max_buckets_ &&
         sample_.schema > kMinSchema)
    halve_resolution();
}

void NativeHistogram::halve_resolution() {
  --sample_.schema;
  sample_.positive = merged(sample_.positive);
  sample_.negative = merged(sample_.negative);
}

HistogramSample NativeHistogram::collect() const {
  HistogramSample sample;
  {
    const std::lock_guard lock(mutex_);
    sample = sample_;
  }
  uint64_t count = 0;
  for (prometheus::ClientMetric::Bucket& bucket : sample.classic.bucket)
    bucket.cumulative_count = count += bucket.cumulative_count;
  return sample;
}

}  // namespace lockstep::metrics
