#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include <prometheus/client_metric.h>

/// Native (exponential) histograms of Prometheus.
namespace lockstep::metrics {

/// Newest observation of a classic bucket, with the step to which it belongs.
struct Exemplar {
  int64_t step = 0;
  double value = 0;
  double time_s = 0;  ///< since 1970
};

/// Contents of a NativeHistogram at one moment.
///
/// The native bucket with index i holds the values in (b^(i - 1), b^i], where b = 2^(2^-schema);
/// the negative ones hold the values whose absolute value lies there. Empty buckets are absent.
struct HistogramSample {
  prometheus::ClientMetric::Histogram classic;     ///< count, sum and the classic buckets
  std::vector<std::optional<Exemplar>> exemplars;  ///< of each classic bucket
  int schema = 0;
  double zero_threshold = 0;
  uint64_t num_zeros = 0;  ///< values of at most zero_threshold, by absolute value
  std::map<int, uint64_t> positive, negative;
};

/// Histogram that needs no bounds. Each value is known to 4.4 %: the buckets grow by the factor
/// 2^(1/16), and only those with values exist. Once more than `max_buckets` have values, each two
/// neighbours become one (the schema falls by one), so memory and page stay bounded. Classic
/// buckets are counted too, for readers of the text formats. The method is that of Prometheus' own
/// client libraries.
///
/// Any thread may call all methods. observe() takes one uncontended lock and the look-up in a map
/// of at most max_buckets entries.
class NativeHistogram {
 public:
  static constexpr int kMaxSchema = 4;   ///< factor 1.044
  static constexpr int kMinSchema = -4;  ///< factor 65,536; the buckets are not merged further
  static constexpr double kZeroThreshold = 0x1p-128;

  /// `bounds`: upper bounds of the classic buckets, ascending, without the infinite one.
  explicit NativeHistogram(std::vector<double> bounds, size_t max_buckets = 160);

  /// Counts a value. NaN is added to count and sum and is in no native bucket. `step`: of the
  /// exemplar; nullopt: none.
  void observe(double value, std::optional<int64_t> step = std::nullopt);

  HistogramSample collect() const;

 private:
  void count_natively(double value);
  void halve_resolution();

  const std::vector<double> bounds_;
  const size_t max_buckets_;
  mutable std::mutex mutex_;  // guards the rest
  HistogramSample sample_;    // its classic buckets are not cumulative
};

}  // namespace lockstep::metrics
