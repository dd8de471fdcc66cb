// The pages of one process, put together as a trainer does, fetched over HTTP.
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "full_page.h"
#include "http_client.h"
#include "metrics/exposition.h"
#include "metrics/http/http_server.h"
#include "metrics/training_metrics.h"
#include "tests/support/require_oracle.h"

namespace lockstep::metrics {
namespace scrape_test {

using ::testing::HasSubstr;

/// Exit code and output of a shell command.
std::pair<int, std::string> run(const std::string& command) {
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::string output;
  std::array<char, 4096> buffer{};
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe))
    output.append(buffer.data(), count);
  return {::pclose(pipe), output};
}

class Scrape : public ::testing::Test {
 protected:
  std::string url(const std::string& path) const {
    return "http://" + server.address().text() + path;
  }
  std::string get(const std::string& path) const { return tests::get(server.address().port, path); }

  TrainingMetrics all{tests::some_facts()};
  HttpMetrics http{all.registry()};
  Health health;
  const Exposition pages{{},
                         health,
                         {.metrics = [this](PageFormat format) { return all.page(format); },
                          .live = [this] { return all.live(); }}};
  const HttpServer server{{.listen = {"127.0.0.1", 0}},
                          [this](const HttpRequest& request) { return pages.handle(request); },
                          &http};
};

TEST_F(Scrape, PromtoolHasNoRemark) {
  const std::string promtool = LOCKSTEP_SOURCE_DIR "/.venv-test/bin/promtool";
  if (!std::filesystem::exists(promtool))
    LOCKSTEP_MISSING_ORACLE("no " + promtool + "; run tools/setup test");
  for (const bool is_fed : {false, true}) {
    if (is_fed) tests::record_everything(&all);
    const auto [code, output] = run("bash -o pipefail -c 'curl -fsS " + url("/metrics") + " | " +
                                    promtool + " check metrics'");
    EXPECT_EQ(code, 0);
    EXPECT_EQ(output, "");
  }
}

TEST_F(Scrape, CountersMoveBetweenTwoScrapes) {
  EXPECT_THAT(get("/metrics"), HasSubstr("\nlockstep_steps_total 0\n"));
  all.record_step(tests::some_step(1));
  EXPECT_THAT(get("/metrics"), HasSubstr("\nlockstep_steps_total 1\n"));
}

TEST_F(Scrape, TheServerCountsItself) {
  get("/metrics");
  get("/readyz");
  get("/nowhere");
  const std::string page = get("/metrics");
  EXPECT_THAT(page,
              HasSubstr("lockstep_http_requests_total{code=\"200\",handler=\"/metrics\"} 1\n"));
  EXPECT_THAT(page,
              HasSubstr("lockstep_http_requests_total{code=\"503\",handler=\"/readyz\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("lockstep_http_requests_total{code=\"404\",handler=\"other\"} 1\n"));
  EXPECT_THAT(page,
              HasSubstr("lockstep_http_request_duration_seconds_count{handler=\"/metrics\"} 1\n"));
  EXPECT_THAT(page,
              HasSubstr("lockstep_http_request_duration_seconds_count{handler=\"other\"} 2\n"));
  EXPECT_THAT(page, HasSubstr("lockstep_http_rejected_connections_total{reason=\"limit\"} 0\n"));
}

TEST_F(Scrape, ScrapesAndStepsGoOnTogether) {
  std::jthread trainer([this](const std::stop_token& stop) {
    for (int64_t step = 1; !stop.stop_requested(); ++step) {
      all.record_step(tests::some_step(step));
      health.note_step();
    }
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(get("/metrics"), HasSubstr("200 OK"));
    EXPECT_THAT(get("/healthz?verbose"), HasSubstr("200 OK"));
  }
}

}  // namespace scrape_test
}  // namespace lockstep::metrics
