#include "metrics/page_formats.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/compile.h>
#include <fmt/format.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/delimited_message_util.h>

#include "metrics/page.pb.h"

// The text formats are appended to one string with fmt, without streams.
namespace lockstep::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Choice of the format.

constexpr const char* kWhite = " \t";

/// Removes the part before `mark`, and the mark, and returns the part without white space around.
std::string_view take_word(char mark, std::string_view* text) {
  const size_t at = text->find(mark);
  std::string_view word = text->substr(0, at);
  text->remove_prefix(at == text->npos ? text->size() : at + 1);
  word.remove_prefix(std::min(word.find_first_not_of(kWhite), word.size()));
  return word.substr(0, word.find_last_not_of(kWhite) + 1);
}

/// Media range of an Accept header, in lower case.
struct MediaRange {
  std::string_view type;
  std::map<std::string_view, std::string_view> parameters;

  std::string_view parameter(std::string_view name) const {
    const auto found = parameters.find(name);
    return found == parameters.end() ? "" : found->second;
  }
  /// Returns its q from 0 to 1; 0 if it is no number.
  double quality() const {
    const auto found = parameters.find("q");
    if (found == parameters.end()) return 1;
    double quality = 0;
    std::from_chars(found->second.begin(), found->second.end(), quality);
    return std::isfinite(quality) ? std::clamp(quality, 0.0, 1.0) : 0;
  }
};

MediaRange parse_range(std::string_view text) {
  MediaRange range{take_word(';', &text), {}};
  while (!text.empty()) {
    std::string_view value = take_word(';', &text);
    const std::string_view name = take_word('=', &value);
    if (value.size() > 1 && value.starts_with('"') && value.ends_with('"'))
      value = value.substr(1, value.size() - 2);
    range.parameters.emplace(name, value);
  }
  return range;
}

std::optional<PageFormat> format_of(const MediaRange& range) {
  const std::string_view version = range.parameter("version");
  if (range.type == "application/vnd.google.protobuf" &&
      range.parameter("proto") == "io.prometheus.client.metricfamily" &&
      range.parameter("encoding") == "delimited")
    return PageFormat::kProtobuf;
  if (range.type == "application/openmetrics-text" &&
      (version.empty() || version == "1.0.0" || version == "0.0.1"))
    return PageFormat::kOpenMetrics;
  if (range.type == "text/plain" || range.type == "text/*" || range.type == "*/*")
    return PageFormat::kText;
  return std::nullopt;
}

// Text formats.

/// Limit below which whole numbers are written without an exponent.
constexpr double kExactIntegers = 1e15;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::string_view kTotal = "_total";

/// Returns the word after "# TYPE".
std::string_view type_name(MetricType type, bool is_open_metrics) {
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
      return is_open_metrics ? "unknown" : "untyped";
  }
}

/// Page in a text format, built in one string.
class TextPage {
 public:
  explicit TextPage(bool is_open_metrics) : is_open_metrics_(is_open_metrics) {}

  /// Adds a family. `native`: null without exemplars.
  void add(const MetricFamily& family, const HistogramSample* native) {
    // OpenMetrics adds the ending _total to the family's name; a counter without it has no type.
    std::string_view name = family.name;
    MetricType type = family.type;
    if (is_open_metrics_ && type == MetricType::Counter) {
      if (name.ends_with(kTotal))
        name.remove_suffix(kTotal.size());
      else
        type = MetricType::Untyped;
    }
    if (!family.help.empty()) {
      text_.append("# HELP ").append(name).append(" ");
      add_escaped(family.help, is_open_metrics_ ? "\\\n\"" : "\\\n");
      text_ += '\n';
    }
    text_.append("# TYPE ").append(name).append(" ").append(type_name(type, is_open_metrics_));
    text_ += '\n';
    for (const ClientMetric& metric : family.metric) add(family, metric, native);
  }
  std::string take() {
    if (is_open_metrics_) text_ += "# EOF\n";
    return std::move(text_);
  }

 private:
  void add(const MetricFamily& family, const ClientMetric& metric, const HistogramSample* native) {
    switch (family.type) {
      case MetricType::Counter:
        return add_line(family.name, "", metric, "", "", metric.counter.value);
      case MetricType::Gauge:
        return add_line(family.name, "", metric, "", "", metric.gauge.value);
      case MetricType::Histogram:
        return add_histogram(family.name, metric, native);
      case MetricType::Summary:
        return add_summary(family.name, metric);
      default:
        return add_line(family.name, "", metric, "", "", metric.untyped.value);
    }
  }

  void add_histogram(const std::string& name, const ClientMetric& metric,
                     const HistogramSample* native) {
    const ClientMetric::Histogram& histogram = metric.histogram;
    add_line(name, "_count", metric, "", "", static_cast<double>(histogram.sample_count));
    add_line(name, "_sum", metric, "", "", histogram.sample_sum);
    double last = 0;
    for (size_t i = 0; i < histogram.bucket.size(); ++i) {
      last = histogram.bucket[i].upper_bound;
      add_line(name, "_bucket", metric, "le", bound(last),
               static_cast<double>(histogram.bucket[i].cumulative_count));
      if (native != nullptr) add_exemplar(native->exemplars[i]);
    }
    // The format requires a bucket +Inf, which equals the count.
    if (last != kInfinity)
      add_line(name, "_bucket", metric, "le", "+Inf", static_cast<double>(histogram.sample_count));
  }

  /// Adds an exemplar to the last line.
  void add_exemplar(const std::optional<Exemplar>& exemplar) {
    if (!exemplar || !is_open_metrics_) return;
    text_.pop_back();  // the newline
    fmt::format_to(std::back_inserter(text_), FMT_COMPILE(" # {{step=\"{}\"}} "), exemplar->step);
    text_.append(number(exemplar->value));
    fmt::format_to(std::back_inserter(text_), FMT_COMPILE(" {:.3f}\n"), exemplar->time_s);
  }

  void add_summary(const std::string& name, const ClientMetric& metric) {
    const ClientMetric::Summary& summary = metric.summary;
    add_line(name, "_count", metric, "", "", static_cast<double>(summary.sample_count));
    add_line(name, "_sum", metric, "", "", summary.sample_sum);
    for (const ClientMetric::Quantile& one : summary.quantile)
      add_line(name, "", metric, "quantile", bound(one.quantile), one.value);
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
    if (metric.timestamp_ms != 0) {
      if (is_open_metrics_)
        fmt::format_to(std::back_inserter(text_), FMT_COMPILE(" {:.3f}"),
                       static_cast<double>(metric.timestamp_ms) / 1000);
      else
        fmt::format_to(std::back_inserter(text_), FMT_COMPILE(" {}"), metric.timestamp_ms);
    }
    text_ += '\n';
  }

  /// Formats the value of a label `le` or `quantile`. OpenMetrics requires 1.0 instead of 1.
  std::string bound(double value) {
    std::string text(number(value));
    if (is_open_metrics_ && text.find_first_not_of("-0123456789") == text.npos) text += ".0";
    return text;
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

  const bool is_open_metrics_;
  std::string text_;
  fmt::memory_buffer number_;
};

// Protobuf.

void set_exemplar(const Exemplar& exemplar, prom::pb::Exemplar* message) {
  prom::pb::Label* label = message->add_label();
  label->set_name("step");
  label->set_value(std::to_string(exemplar.step));
  message->set_value(exemplar.value);
  const double seconds = std::floor(exemplar.time_s);
  message->mutable_timestamp()->set_seconds(static_cast<int64_t>(seconds));
  message->mutable_timestamp()->set_nanos(static_cast<int32_t>((exemplar.time_s - seconds) * 1e9));
}

/// Adds buckets as spans of neighbours and differences of their counts.
void add_buckets(const std::map<int, uint64_t>& buckets,
                 google::protobuf::RepeatedPtrField<prom::pb::Span>* spans,
                 google::protobuf::RepeatedField<int64_t>* deltas) {
  int next = 0;  // index after the last span
  int64_t last_count = 0;
  for (const auto& [index, count] : buckets) {
    if (spans->empty() || index != next) {
      prom::pb::Span* span = spans->Add();
      span->set_offset(index - next);
    }
    prom::pb::Span* span = spans->Mutable(spans->size() - 1);
    span->set_length(span->length() + 1);
    deltas->Add(static_cast<int64_t>(count) - last_count);
    last_count = static_cast<int64_t>(count);
    next = index + 1;
  }
}

void set_native(const HistogramSample& native, prom::pb::Distribution* message) {
  for (int i = 0; i < message->bucket_size(); ++i) {
    if (!native.exemplars[static_cast<size_t>(i)]) continue;
    set_exemplar(*native.exemplars[static_cast<size_t>(i)],
                 message->mutable_bucket(i)->mutable_exemplar());
    *message->add_exemplars() = message->bucket(i).exemplar();
  }
  message->set_schema(native.schema);
  message->set_zero_threshold(native.zero_threshold);
  message->set_zero_count(native.num_zeros);
  add_buckets(native.positive, message->mutable_positive_span(), message->mutable_positive_delta());
  add_buckets(native.negative, message->mutable_negative_span(), message->mutable_negative_delta());
}

void set_histogram(const ClientMetric::Histogram& histogram, prom::pb::Distribution* message) {
  message->set_sample_count(histogram.sample_count);
  message->set_sample_sum(histogram.sample_sum);
  for (const ClientMetric::Bucket& bucket : histogram.bucket) {
    prom::pb::Bucket* one = message->add_bucket();
    one->set_cumulative_count(bucket.cumulative_count);
    one->set_upper_bound(bucket.upper_bound);
  }
}

void set_summary(const ClientMetric::Summary& summary, prom::pb::Summary* message) {
  message->set_sample_count(summary.sample_count);
  message->set_sample_sum(summary.sample_sum);
  for (const ClientMetric::Quantile& quantile : summary.quantile) {
    prom::pb::Quantile* one = message->add_quantile();
    one->set_quantile(quantile.quantile);
    one->set_value(quantile.value);
  }
}

/// Sets type and value of a series.
void set_value(const MetricFamily& family, const ClientMetric& metric, prom::pb::Series* message) {
  switch (family.type) {
    case MetricType::Counter:
      return message->mutable_counter()->set_value(metric.counter.value);
    case MetricType::Gauge:
      return message->mutable_gauge()->set_value(metric.gauge.value);
    case MetricType::Histogram:
      return set_histogram(metric.histogram, message->mutable_histogram());
    case MetricType::Summary:
      return set_summary(metric.summary, message->mutable_summary());
    default:
      return message->mutable_untyped()->set_value(metric.untyped.value);
  }
}

prom::pb::Type type_of(MetricType type) {
  switch (type) {
    case MetricType::Counter:
      return prom::pb::COUNTER;
    case MetricType::Gauge:
      return prom::pb::GAUGE;
    case MetricType::Histogram:
      return prom::pb::HISTOGRAM;
    case MetricType::Summary:
      return prom::pb::SUMMARY;
    default:
      return prom::pb::UNTYPED;
  }
}

prom::pb::Family message_of(const MetricFamily& family, const HistogramSample* native) {
  prom::pb::Family message;
  message.set_name(family.name);
  message.set_help(family.help);
  message.set_type(type_of(family.type));
  for (const ClientMetric& metric : family.metric) {
    prom::pb::Series* series = message.add_metric();
    for (const ClientMetric::Label& own : metric.label) {
      prom::pb::Label* label = series->add_label();
      label->set_name(own.name);
      label->set_value(own.value);
    }
    series->set_timestamp_ms(metric.timestamp_ms);
    set_value(family, metric, series);
    if (native != nullptr) set_native(*native, series->mutable_histogram());
  }
  return message;
}

}  // namespace

PageFormat wanted_format(std::string_view accept) {
  std::string lower(accept);
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  PageFormat best = PageFormat::kText;
  double best_quality = 0;
  for (std::string_view rest = lower; !rest.empty();) {
    const MediaRange range = parse_range(take_word(',', &rest));
    const std::optional<PageFormat> format = format_of(range);
    if (!format || range.quality() <= best_quality) continue;
    best = *format;
    best_quality = range.quality();
  }
  return best;
}

const char* content_type(PageFormat format) {
  switch (format) {
    case PageFormat::kOpenMetrics:
      return "application/openmetrics-text; version=1.0.0; charset=utf-8";
    case PageFormat::kProtobuf:
      return "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; "
             "encoding=delimited";
    default:
      return "text/plain; version=0.0.4; charset=utf-8";
  }
}

std::string page_in(PageFormat format, const PageContent& content) {
  const auto native_of = [&](const MetricFamily& family) {
    const auto found = content.histograms.find(family.name);
    return found == content.histograms.end() ? nullptr : &found->second;
  };
  if (format != PageFormat::kProtobuf) {
    TextPage page(format == PageFormat::kOpenMetrics);
    for (const MetricFamily& family : content.families) page.add(family, native_of(family));
    return page.take();
  }
  std::string page;
  google::protobuf::io::StringOutputStream stream(&page);
  for (const MetricFamily& family : content.families)
    google::protobuf::util::SerializeDelimitedToZeroCopyStream(
        message_of(family, native_of(family)), &stream);
  return page;
}

}  // namespace lockstep::metrics
