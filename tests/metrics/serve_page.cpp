// Serves a page for page_oracle.py until its standard input ends. Prints the port and the exact
// 99th percentile of the step durations on it.
#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "full_page.h"
#include "metrics/exposition.h"
#include "metrics/http/http_server.h"
#include "metrics/training_metrics.h"

using namespace lockstep;

int main() {
  metrics::TrainingMetrics all(tests::some_facts());
  metrics::HttpMetrics answers(all.registry());
  const metrics::Health health;
  tests::record_everything(&all);
  constexpr int64_t kNumSteps = 20000;
  std::mt19937 random(1);
  std::lognormal_distribution<double> step_s(-3, 0.4);
  std::vector<double> durations_s;
  for (int64_t step = 1; step <= kNumSteps; ++step) {
    metrics::StepSample sample = tests::some_step(step);
    durations_s.push_back(sample.duration_s = step_s(random));
    all.record_step(sample);
  }
  std::sort(durations_s.begin(), durations_s.end());
  const metrics::Exposition pages(
      {}, health,
      {.metrics = [&](metrics::PageFormat format) { return all.page(format); },
       .live = [&] { return all.live(); }});
  const metrics::HttpServer server(
      {.listen = {"127.0.0.1", 0}},
      [&](const metrics::HttpRequest& request) { return pages.handle(request); }, &answers);
  std::printf("%d %.17g\n", server.address().port,
              durations_s[static_cast<size_t>(kNumSteps * 99 / 100)]);
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
}
