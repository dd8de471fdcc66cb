// The metrics page over HTTP: bench/exposition [PYTHON]
//
// A scrape of 200 and of 2,000 gauges from the project's server, from prometheus-cpp's own, and
// with a Python that has prometheus_client (else that of .venv-test) from prometheus_client's, in
// turn, in wall time over loopback with a connection each; all pages must hold equally many
// series. Then the time to set a gauge.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include "base/error.h"
#include "bench/programs/pairs.h"
#include "metrics/http/http_server.h"
#include "metrics/page_formats.h"
#include "metrics/series.h"

namespace lockstep::bench {
namespace {

constexpr int kNumPairs = 15, kNumScrapes = 20;

/// Gauges, ten to a family; bench/peers/metrics_page.py makes the same.
std::shared_ptr<prometheus::Registry> registry_of(int num_series) {
  auto registry = std::make_shared<prometheus::Registry>();
  for (int family = 0; family < num_series / 10; ++family) {
    auto& gauges = prometheus::BuildGauge()
                       .Name(fmt::format("lockstep_family_{}_seconds", family))
                       .Help("A family of the benchmark.")
                       .Register(*registry);
    for (int place = 0; place < 10; ++place)
      gauges.Add({{"place", fmt::format("place_{}", place)}}).Set(family + place / 7.0);
  }
  return registry;
}

std::string text_of(const prometheus::Registry& registry) {
  return metrics::page_in(metrics::PageFormat::kText, {registry.Collect()});
}

std::string scrape(uint16_t port) {
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  check(::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0, "connect");
  constexpr std::string_view kRequest =
      "GET /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
  check(::send(client, kRequest.data(), kRequest.size(), 0) > 0, "send");
  std::string page(1 << 20, '\0');
  size_t num_bytes = 0;
  for (ssize_t count = 1; count > 0; num_bytes += static_cast<size_t>(count))
    count = std::max<ssize_t>(::recv(client, &page[num_bytes], page.size() - num_bytes, 0), 0);
  ::close(client);
  page.resize(num_bytes);
  return page;
}

int64_t num_series_of(const std::string& page) {
  int64_t count = 0;
  for (size_t at = 0; (at = page.find("\nlockstep_family", at)) != std::string::npos; ++at) ++count;
  return count;
}

double scrapes_ms(uint16_t port) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kNumScrapes; ++i) (void)scrape(port);
  const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - start;
  return passed.count() / kNumScrapes;
}

/// prometheus_client in a process of its own, which ends with this object.
class PythonServer {
 public:
  PythonServer(const std::string& python, int num_series)
      : port_file_(std::filesystem::temp_directory_path() /
                   fmt::format("lockstep-bench-{}-port", ::getpid())),
        pipe_(::popen(fmt::format("'{}' '{}/bench/peers/metrics_page.py' {} '{}'", python,
                                  LOCKSTEP_SOURCE_DIR, num_series, port_file_.string())
                          .c_str(),
                      "w")) {
    check(pipe_ != nullptr, "popen");
    for (int i = 0; i < 1000 && !std::filesystem::exists(port_file_); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (!(std::ifstream(port_file_) >> port_)) {
      ::pclose(pipe_);
      throw Error(ExitCode::kUnavailable, "bench", "no prometheus_client: tools/setup test");
    }
  }
  ~PythonServer() {
    ::pclose(pipe_);
    std::filesystem::remove(port_file_);
  }
  PythonServer(const PythonServer&) = delete;
  PythonServer& operator=(const PythonServer&) = delete;

  uint16_t port() const { return port_; }

 private:
  const std::filesystem::path port_file_;
  FILE* const pipe_;
  uint16_t port_ = 0;
};

/// Ratios of the peer's time to ours, in pairs.
void print_peer(const char* name, const std::vector<double>& ratios, double goal) {
  fmt::print("  {} takes {:.2f}x ({:.2f} to {:.2f})  goal >= {}x: {}", name, median(ratios),
             *std::min_element(ratios.begin(), ratios.end()),
             *std::max_element(ratios.begin(), ratios.end()), goal, met(median(ratios) >= goal));
}

void time_scrapes(int num_series, const std::string& python) {
  const auto registry = registry_of(num_series);
  const metrics::HttpServer own(
      {.listen = {"127.0.0.1", 0}},
      [&](std::string_view) { return metrics::HttpResponse{.body = text_of(*registry)}; }, nullptr);
  prometheus::Exposer library("127.0.0.1:0");
  library.RegisterCollectable(registry);
  const auto library_port = static_cast<uint16_t>(library.GetListeningPorts().at(0));
  std::optional<PythonServer> client;
  if (!python.empty()) client.emplace(python, num_series);
  check(num_series_of(scrape(own.address().port)) == num_series, "our page is complete");
  check(num_series_of(scrape(library_port)) == num_series, "prometheus-cpp's page is complete");
  check(!client || num_series_of(scrape(client->port())) == num_series,
        "Python's page is complete");
  std::vector<double> own_ms, by_library, by_client;
  for (int i = 0; i < kNumPairs; ++i) {
    own_ms.push_back(scrapes_ms(own.address().port));
    by_library.push_back(scrapes_ms(library_port) / own_ms.back());
    if (client) by_client.push_back(scrapes_ms(client->port()) / own_ms.back());
  }
  fmt::print("scrape of {:>5} gauges  {:>7.3f} ms", num_series, median(own_ms));
  print_peer("prometheus-cpp", by_library, 1);
  if (client) print_peer("prometheus_client", by_client, 8);
  fmt::print("\n");
}

void time_set() {
  constexpr int kNumSets = 10'000'000;
  constexpr double kGoalNs = 10;
  prometheus::Gauge gauge;
  const double set_ns = median_ms(5, {},
                                  [&] {
                                    for (int i = 0; i < kNumSets; ++i) gauge.Set(i);
                                  }) *
                        1e6 / kNumSets;
  fmt::print("a gauge set             {:>7.2f} ns  goal <= {} ns: {}\n", set_ns, kGoalNs,
             met(set_ns <= kGoalNs));
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::exit_code_of([&] {
    const std::filesystem::path known(LOCKSTEP_SOURCE_DIR "/.venv-test/bin/python");
    std::string python;
    if (std::filesystem::exists(known)) python = known.string();
    if (argc > 1) python = argv[1];
    for (const int num_series : {200, 2000}) lockstep::bench::time_scrapes(num_series, python);
    lockstep::bench::time_set();
  });
}
