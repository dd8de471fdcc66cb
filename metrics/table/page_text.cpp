#include "metrics/table/page_text.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/compile.h>
#include <fmt/format.h>
#include <prometheus/metric_family.h>

// The text is appended to one string with fmt, without streams.
namespace lockstep::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

/// Limit below which whole numbers are written without an exponent.
constexpr double kExactIntegers = 1e15;

/// Returns the word after "# TYPE".
std::string_view type_name(MetricType type) {
  switch (type) {
    case MetricType::Counter:
      return "counter";
    case MetricType::Gauge:
      return "gauge";
    case MetricType::Summary:
      return "summary";
    case MetricType::Histogram:
      return "histogram";
    default:
      return "untyped";
  }
}

/// Text of a page, built in one string.
class Page {
 public:
  void add(const MetricFamily& family) {
    if (!family.help.empty()) {
      text_.append("# HELP ").append(family.name).append(" ");
      add_escaped(family.help, "\\\n");
      text_ += '\n';
    }
    text_.append("# TYPE ").append(family.name).append(" ").append(type_name(family.type));
    text_ += '\n';
    for (const ClientMetric& metric : family.metric) add(family, metric);
  }
  std::string take() { return std::move(text_); }

 private:
  void add(const MetricFamily& family, const ClientMetric& metric) {
    switch (family.type) {
      case MetricType::Counter:
        return add_line(family.name, "", metric, "", "", metric.counter.value);
      case MetricType::Gauge:
        return add_line(family.name, "", metric, "", "", metric.gauge.value);
      case MetricType::Histogram:
        return add_histogram(family.name, metric);
      case MetricType::Summary:
        return add_summary(family.name, metric);
      default:
        return add_line(family.name, "", metric, "", "", metric.untyped.value);
    }
  }

  void add_histogram(const std::string& name, const ClientMetric& metric) {
    const ClientMetric::Histogram& histogram = metric.histogram;
    add_line(name, "_count", metric, "", "", static_cast<double>(histogram.sample_count));
    add_line(name, "_sum", metric, "", "", histogram.sample_sum);
    double last = 0;
    for (const ClientMetric::Bucket& bucket : histogram.bucket) {
      last = bucket.upper_bound;
      add_line(name, "_bucket", metric, "le", std::string(number(last)),
               static_cast<double>(bucket.cumulative_count));
    }
    // The format requires a bucket +Inf, which equals the count.
    if (last != std::numeric_limits<double>::infinity())
      add_line(name, "_bucket", metric, "le", "+Inf", static_cast<double>(histogram.sample_count));
  }

  void add_summary(const std::string& name, const ClientMetric& metric) {
    const ClientMetric::Summary& summary = metric.summary;
    add_line(name, "_count", metric, "", "", static_cast<double>(summary.sample_count));
    add_line(name, "_sum", metric, "", "", summary.sample_sum);
    for (const ClientMetric::Quantile& one : summary.quantile)
      add_line(name, "", metric, "quantile", std::string(number(one.quantile)), one.value);
  }

  /// Adds a line. `label`: further label besides the metric's own; empty: none.
  void add_line(const std::string& name, std::string_view suffix, const ClientMetric& metric,
                std::string_view label, std::string_view label_value, double value) {
    text_.append(name).append(suffix);
    char before = '{';
    for (const ClientMetric::Label& own : metric.label) {
      text_ += std::exchange(before, ',');
      text_.append(own.name).append("=\"");
      add_escaped(own.value, "\\\n\"");
      text_ += '"';
    }
    if (!label.empty()) {
      text_ += std::exchange(before, ',');
      text_.append(label).append("=\"").append(label_value).append("\"");
    }
    // before == ',' means that a brace was opened.
    text_.append(before == ',' ? "} " : " ").append(number(value));
    // Lockstep sets no timestamps: Prometheus uses the time of the scrape.
    if (metric.timestamp_ms != 0)
      fmt::format_to(std::back_inserter(text_), FMT_COMPILE(" {}"), metric.timestamp_ms);
    text_ += '\n';
  }

  /// Formats a number. The result is valid until the next call.
  std::string_view number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
    number_.clear();
    const bool is_whole = std::abs(value) < kExactIntegers && value == std::trunc(value);
    if (is_whole)
      fmt::format_to(std::back_inserter(number_), FMT_COMPILE("{}"), static_cast<int64_t>(value));
    else
      fmt::format_to(std::back_inserter(number_), FMT_COMPILE("{}"), value);
    return {number_.data(), number_.size()};
  }

  // Only the characters in `special` are escaped; help texts and label values differ there.
  void add_escaped(std::string_view text, std::string_view special) {
    for (size_t at = text.find_first_of(special); at != text.npos;
         at = text.find_first_of(special)) {
      text_.append(text.substr(0, at)).append("\\");
      text_ += text[at] == '\n' ? 'n' : text[at];
      text.remove_prefix(at + 1);
    }
    text_.append(text);
  }

  std::string text_;
  fmt::memory_buffer number_;
};

}  // namespace

std::string page_text(const std::vector<MetricFamily>& families) {
  Page page;
  for (const MetricFamily& family : families) page.add(family);
  return page.take();
}

}  // namespace lockstep::metrics
