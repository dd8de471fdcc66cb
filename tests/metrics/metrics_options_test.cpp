#include "metrics/metrics_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

namespace lockstep::metrics {
namespace metrics_options_test {

using ::testing::HasSubstr;

struct Reading {
  MetricsOptions metrics;
  SummaryOptions summary;
  std::string faults;
  std::vector<FieldDoc> docs;
};

Reading read(const std::string& text) {
  Reading result;
  Diagnostics faults;
  const YamlDocument document = YamlDocument::parse("run.yaml", text, &faults);
  ConfigReader file(document.root(), "", document, &faults, &result.docs);
  result.metrics = read_metrics_options(file.section("metrics"));
  result.summary = read_summary_options(file.section("summary"));
  file.done();
  result.faults = faults.empty() ? "" : faults.text();
  return result;
}

TEST(MetricsOptions, AbsentSectionsKeepDefaults) {
  const Reading reading = read("other: 1\n");
  EXPECT_EQ(reading.metrics.listen, "127.0.0.1:9464");
  EXPECT_EQ(reading.metrics.scope, "auto");
  EXPECT_EQ(reading.metrics.linger_s, 20);
  EXPECT_FALSE(reading.metrics.lingers_unseen);
  EXPECT_EQ(reading.summary.save_summary_steps, 100);
  EXPECT_EQ(reading.summary.log_every, 1);
  EXPECT_TRUE(reading.summary.tensorboard);
  EXPECT_EQ(reading.summary.progress_s, 10);
}

TEST(MetricsOptions, ReadsEveryKeyAndDocumentsIt) {
  const Reading reading = read(
      "metrics: {listen: \"[::1]:9000\", scope: run, max_turn_secs: 5, max_step_secs: 7,\n"
      "  linger_secs: 30, textfile_dir: /var/lib/node, web_config: w.yml, token_file: t,\n"
      "  targets_dir: /srv/targets}\n"
      "summary: {save_summary_steps: 5, log_every: 2, tensorboard: false, progress_secs: 0, "
      "per_layer: true,\n  flush_secs: 3, histogram_steps: 50, x_axis: samples}\n");
  EXPECT_EQ(reading.faults, "");
  EXPECT_EQ(reading.metrics.scope, "run");
  EXPECT_EQ(reading.metrics.turn_limit_s, 5);
  EXPECT_EQ(reading.metrics.step_limit_s, 7);
  EXPECT_FALSE(reading.summary.tensorboard);
  EXPECT_EQ(reading.summary.progress_s, 0);
  EXPECT_TRUE(reading.summary.per_layer);
  EXPECT_EQ(reading.metrics.linger_s, 30);
  EXPECT_TRUE(reading.metrics.lingers_unseen);
  EXPECT_EQ(reading.metrics.targets_dir, "/srv/targets");
  EXPECT_EQ(reading.metrics.textfile_dir, "/var/lib/node");
  EXPECT_EQ(reading.metrics.access.web_config, "w.yml");
  EXPECT_EQ(reading.metrics.access.token_file, "t");
  EXPECT_EQ(reading.summary.flush_s, 3);
  EXPECT_EQ(reading.summary.histogram_steps, 50);
  EXPECT_EQ(reading.summary.axis_units_per_step(32), 32);
  EXPECT_EQ(reading.docs.size(), 18u);
}

TEST(MetricsOptions, FaultsNameThePlace) {
  EXPECT_THAT(read("metrics: {listen: nowhere}\n").faults,
              HasSubstr("run.yaml:1:19: error: 'metrics.listen' must be"));
  EXPECT_THAT(read("metrics: {listen: \"h:99999\"}\n").faults, HasSubstr("not 'h:99999'"));
  EXPECT_THAT(read("metrics: {lisen: off}\n").faults, HasSubstr("did you mean 'listen'"));
  EXPECT_THAT(read("summary: {log_every: 0}\n").faults, HasSubstr("must be >= 1"));
}

TEST(MetricsOptions, AnAddressThatOthersReachNeedsProtection) {
  for (const char* open : {"0.0.0.0:9464", ":9464", "[::]:1", "192.0.2.7:9464"})
    EXPECT_THAT(read("metrics: {listen: \"" + std::string(open) + "\"}\n").faults,
                HasSubstr("name 'metrics.token_file'"))
        << open;
  for (const char* closed : {"127.0.0.1:9464", "127.9.9.9:0", "[::1]:9464", "localhost:9464"})
    EXPECT_EQ(read("metrics: {listen: \"" + std::string(closed) + "\"}\n").faults, "") << closed;
  EXPECT_EQ(read("metrics: {listen: \":9464\", token_file: t}\n").faults, "");
  EXPECT_EQ(read("metrics: {listen: \":9464\", web_config: w}\n").faults, "");
}

TEST(MetricsOptions, ManyRanksAreShownByTheirNodesUnlessTheRunSaysOtherwise) {
  MetricsOptions options;
  EXPECT_EQ(options.scope_for(1), "rank");
  EXPECT_EQ(options.scope_for(64), "rank");
  EXPECT_EQ(options.scope_for(65), "node");
  EXPECT_TRUE(options.gathers(65));
  EXPECT_TRUE(options.listen_for(64, 0, 65));
  EXPECT_FALSE(options.listen_for(65, 1, 128));
  options.scope = "rank";
  EXPECT_EQ(options.scope_for(1000), "rank");
}

TEST(MetricsOptions, ScopeAndOffDecideWhoListens) {
  MetricsOptions options;
  EXPECT_EQ(options.listen_for(5, 1, 8)->text(), "127.0.0.1:9465");
  EXPECT_FALSE(options.gathers(8));
  options.scope = "run";
  EXPECT_FALSE(options.listen_for(5, 1, 8));
  EXPECT_FALSE(options.listen_for(4, 0, 8));
  EXPECT_TRUE(options.listen_for(0, 0, 8));
  EXPECT_TRUE(options.gathers(8));
  options.scope = "node";
  EXPECT_TRUE(options.gathers(8));
  EXPECT_TRUE(options.listen_for(4, 0, 8));
  EXPECT_FALSE(options.listen_for(5, 1, 8));
  for (const char* scope : {"each", "root"})
    EXPECT_THAT(read(std::string("metrics: {scope: ") + scope + "}\n").faults,
                HasSubstr("must be one of auto, rank, node, run"));
  options.listen = "off";
  EXPECT_FALSE(options.gathers(8));
  EXPECT_FALSE(options.listen_for(0, 0, 8));
}

}  // namespace metrics_options_test
}  // namespace lockstep::metrics
