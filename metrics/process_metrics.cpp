#include "metrics/process_metrics.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>

#include <sys/resource.h>
#include <unistd.h>

#include "metrics/table/series_table.h"

// Names and meaning are those of Prometheus' client libraries, so that common dashboards work.
namespace lockstep::metrics {
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

void add(std::vector<MetricFamily>* families, MetricType type, const char* name, double value) {
  MetricFamily& family =
      families->emplace_back(MetricFamily{name, series_info(name).help, type, {}});
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
}

void add_stat(std::vector<MetricFamily>* families, const Stat& stat) {
  const double ticks_per_s = static_cast<double>(::sysconf(_SC_CLK_TCK));
  add(families, MetricType::Counter, "process_cpu_seconds_total",
      (stat.user_ticks + stat.system_ticks) / ticks_per_s);
  add(families, MetricType::Gauge, "process_resident_memory_bytes",
      stat.resident_pages * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  // start_ticks counts from the machine's boot.
  if (const std::optional<double> boot_time_s = read_boot_time_s())
    add(families, MetricType::Gauge, "process_start_time_seconds",
        *boot_time_s + stat.start_ticks / ticks_per_s);
}

}  // namespace

std::vector<MetricFamily> ProcessMetrics::Collect() const {
  std::vector<MetricFamily> families;
  if (const std::optional<Stat> stat = read_stat()) add_stat(&families, *stat);
  if (const std::optional<double> open_fds = count_open_fds())
    add(&families, MetricType::Gauge, "process_open_fds", *open_fds);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    add(&families, MetricType::Gauge, "process_max_fds", static_cast<double>(limit.rlim_cur));
  return families;
}

}  // namespace lockstep::metrics
