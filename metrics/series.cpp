#include "metrics/series.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"

// Capped gauges and the process_* series. Labels from a model or from data can
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

}  // namespace

MetricFamily family_of(const char* name, double value) {
  const SeriesInfo& row = series_info(name);
  const bool counts = row.kind == SeriesInfo::kCounter;
  MetricFamily family{name, row.help, counts ? MetricType::Counter : MetricType::Gauge, {}};
  prometheus::ClientMetric& metric = family.metric.emplace_back();
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

}  // namespace lockstep::metrics
