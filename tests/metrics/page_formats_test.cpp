#include "metrics/series.h"

#include <cstdlib>
#include <limits>
#include <sstream>
#include <utility>

#include <gtest/gtest.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

namespace lockstep::metrics {
namespace page_text_test {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kValues[] = {0,
                              -0.0,
                              1,
                              -17,
                              0.1,
                              1.0 / 3,
                              1e-300,
                              123456789.25,
                              9007199254740993.0,
                              1e20,
                              1.7e308,
                              5e-324,
                              1760000000.123,
                              kInfinity,
                              -kInfinity};

std::string by_the_library(const std::vector<MetricFamily>& families) {
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

/// Lines as (all but the number, the number): the two writers differ in their digits alone.
std::vector<std::pair<std::string, double>> lines_of(const std::string& page) {
  std::vector<std::pair<std::string, double>> lines;
  std::istringstream text(page);
  for (std::string line; std::getline(text, line);) {
    const size_t mark = line.starts_with('#') ? line.size() : line.rfind("} ") + 1;
    const std::string number = line.substr(mark);
    lines.emplace_back(line.substr(0, mark),
                       number.empty() ? 0 : std::strtod(number.c_str(), nullptr));
  }
  return lines;
}

MetricFamily family(const char* name, MetricType type) {
  return {name, std::string("Help of ") + name + ".", type, {}};
}

std::vector<ClientMetric::Label> labels(size_t i) {
  return {{"place", std::to_string(i)}, {"path", "a\\b \"c\"\nd,e} 1"}};
}

TEST(PageText, SaysWhatTheLibrarySays) {
  std::vector<MetricFamily> all{family("a_total", MetricType::Counter),
                                family("b", MetricType::Gauge), family("c", MetricType::Untyped)};
  for (size_t i = 0; i < std::size(kValues); ++i) {
    ClientMetric metric;
    metric.label = labels(i);
    metric.counter.value = metric.gauge.value = metric.untyped.value = kValues[i];
    for (MetricFamily& one : all) one.metric.push_back(metric);
  }
  for (const double last : {2.5, kInfinity}) {
    ClientMetric metric;
    metric.label = labels(0);
    metric.histogram.sample_count = 12;
    metric.histogram.sample_sum = 0.1;
    metric.histogram.bucket = {{3, 0.5}, {7, 1}, {12, last}};
    metric.summary.sample_count = 4;
    metric.summary.sample_sum = 2.25;
    metric.summary.quantile = {{0.5, 0.25}, {0.75, 1}};
    all.push_back(family("d_seconds", MetricType::Histogram));
    all.back().metric.push_back(metric);
    all.push_back(family("e", MetricType::Summary));
    all.back().metric.push_back(metric);
  }
  EXPECT_EQ(lines_of(page_text(all)), lines_of(by_the_library(all)));
}

TEST(PageText, WritesWhatPeopleRead) {
  MetricFamily gauge{"g", "a \\ b\nc \"d\"", MetricType::Gauge, {}};
  gauge.metric.resize(4);
  gauge.metric[0].gauge.value = 0.1;
  gauge.metric[1].gauge.value = 1e6;
  gauge.metric[2].gauge.value = std::numeric_limits<double>::quiet_NaN();
  gauge.metric[2].label = {{"x", ""}};
  gauge.metric[3].gauge.value = 2;
  gauge.metric[3].timestamp_ms = 1234;
  EXPECT_EQ(
      page_text({gauge}),
      "# HELP g a \\\\ b\\nc \"d\"\n# TYPE g gauge\ng 0.1\ng 1000000\ng{x=\"\"} NaN\ng 2 1234\n");
  EXPECT_EQ(page_text({}), "");
}

}  // namespace page_text_test
}  // namespace lockstep::metrics
