#include "metrics/series.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include <fmt/compile.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"

// Capped gauges, the process_* series, and the text of a page. Labels from a model or from data can
// be arbitrarily many. Each one would be a time series in Prometheus, so their number is limited.
namespace lockstep::metrics {

CappedGauges::CappedGauges(prometheus::Registry& registry, const char* name, size_t max_series,
                           const char* instead)
    : name_(name),
      instead_(instead),
      max_series_(max_series),
      family_(prometheus::BuildGauge().Name(name).Help(series_info(name).help).Register(registry)) {
}

void CappedGauges::set(const prometheus::Labels& labels, double value) {
  auto known = gauges_.find(labels);
  if (known == gauges_.end()) {
    if (gauges_.size() >= max_series_) {
      // The log has one line for all that are left out.
      if (!std::exchange(has_warned_, true))
        log::warning("metrics", fmt::format("{} has reached the limit of {} series on a page; "
                                            "further ones are omitted here; {} has them all",
                                            name_, max_series_, instead_));
      return;
    }
    known = gauges_.emplace(labels, &family_.Add(labels)).first;
  }
  known->second->Set(value);
}

// Names and meaning are those of Prometheus' client libraries, so that common dashboards work.

namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

/// Fields of /proc/self/stat in their own units (proc(5)).
struct Stat {
  double user_ticks = 0, system_ticks = 0, start_ticks = 0, resident_pages = 0;
};

std::optional<Stat> read_stat() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t end_of_name = text.rfind(')');  // the name may contain spaces and brackets
  if (end_of_name == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(end_of_name + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(rest), {}};
  if (fields.size() < 22) return std::nullopt;  // fields[0] is field 3 in proc(5)
  return Stat{std::stod(fields[11]), std::stod(fields[12]), std::stod(fields[19]),
              std::stod(fields[21])};
}

/// Returns the time when the machine started, in seconds since 1970.
std::optional<double> read_boot_time_s() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("btime ")) return std::stod(line.substr(6));
  return std::nullopt;
}

/// Counts the entries of /proc/self/fd; nullopt if they cannot be listed.
std::optional<double> count_open_fds() {
  std::error_code fault;
  std::filesystem::directory_iterator entries("/proc/self/fd", fault);
  if (fault) return std::nullopt;
  return static_cast<double>(std::distance(begin(entries), end(entries))) -
         1;  // minus the listing's own descriptor
}

// The text is appended to one string with fmt, without streams.

using prometheus::ClientMetric;

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

MetricFamily family_of(const char* name, double value) {
  const SeriesInfo& row = series_info(name);
  const bool counts = row.kind == SeriesInfo::kCounter;
  MetricFamily family{name, row.help, counts ? MetricType::Counter : MetricType::Gauge, {}};
  ClientMetric& metric = family.metric.emplace_back();
  (counts ? metric.counter.value : metric.gauge.value) = value;
  return family;
}

std::vector<MetricFamily> process_families() {
  std::vector<MetricFamily> families;
  const auto add = [&](const char* name, double value) {
    families.push_back(family_of(name, value));
  };
  if (const std::optional<Stat> stat = read_stat()) {
    const double ticks_per_s = static_cast<double>(::sysconf(_SC_CLK_TCK));
    add("process_cpu_seconds_total", (stat->user_ticks + stat->system_ticks) / ticks_per_s);
    add("process_resident_memory_bytes",
        stat->resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE)));
    // start_ticks counts from the machine's boot.
    if (const std::optional<double> boot_time_s = read_boot_time_s())
      add("process_start_time_seconds", *boot_time_s + stat->start_ticks / ticks_per_s);
  }
  if (const std::optional<double> open_fds = count_open_fds()) add("process_open_fds", *open_fds);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    add("process_max_fds", static_cast<double>(limit.rlim_cur));
  return families;
}

std::string page_text(const std::vector<MetricFamily>& families) {
  Page page;
  for (const MetricFamily& family : families) page.add(family);
  return page.take();
}

}  // namespace lockstep::metrics
