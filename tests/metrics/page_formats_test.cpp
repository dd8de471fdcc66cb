#include "metrics/page_formats.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <sstream>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

namespace lockstep::metrics {
namespace page_formats_test {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using ::testing::HasSubstr;
using ::testing::Not;

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
  EXPECT_EQ(lines_of(page_in(PageFormat::kText, {all})), lines_of(by_the_library(all)));
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
      page_in(PageFormat::kText, {{gauge}}),
      "# HELP g a \\\\ b\\nc \"d\"\n# TYPE g gauge\ng 0.1\ng 1000000\ng{x=\"\"} NaN\ng 2 1234\n");
  EXPECT_EQ(page_in(PageFormat::kText, {}), "");
}

TEST(PageFormats, TheClientsPreferenceDecides) {
  const std::string protobuf =
      "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
  const std::string open = "application/openmetrics-text;version=1.0.0";
  const std::pair<std::string, PageFormat> cases[] = {
      {"", PageFormat::kText},
      {"*/*", PageFormat::kText},
      {"text/html,application/xhtml+xml,*/*;q=0.8", PageFormat::kText},
      {"image/png", PageFormat::kText},
      {open, PageFormat::kOpenMetrics},
      {"application/openmetrics-text", PageFormat::kOpenMetrics},
      {"APPLICATION/OpenMetrics-Text ; Version=0.0.1", PageFormat::kOpenMetrics},
      {"application/openmetrics-text;version=2.0.0", PageFormat::kText},
      {"application/openmetrics-text;version=2.0.0," + open + ";q=0.1", PageFormat::kOpenMetrics},
      {protobuf, PageFormat::kProtobuf},
      {"application/vnd.google.protobuf;proto=\"io.prometheus.client.MetricFamily\";"
       "encoding=\"delimited\"",
       PageFormat::kProtobuf},
      {"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
       PageFormat::kText},
      {"application/vnd.google.protobuf;proto=another.Message;encoding=delimited",
       PageFormat::kText},
      // What Prometheus sends, with and without native histograms.
      {protobuf + "," + open + ";q=0.8," +
           "application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,"
           "*/*;q=0.1",
       PageFormat::kProtobuf},
      {open + ";escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4," +
           "text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.2,/;q=0.1",
       PageFormat::kOpenMetrics},
      {"text/plain;q=0.9, " + open + ";q=0.8", PageFormat::kText},
      {"text/plain;q=0.8," + open + ";q=0.9," + protobuf + ";q=0", PageFormat::kOpenMetrics},
      {protobuf + ";q=0", PageFormat::kText},
      {open + ";q=nonsense", PageFormat::kText},
      {open + ";q=nan, text/plain;q=0.1", PageFormat::kText},
      {"text/plain;q=7," + open, PageFormat::kText},
      {"text/plain," + open, PageFormat::kText},  // equal: the first
      {",,;;=;q=,", PageFormat::kText},
  };
  for (const auto& [accept, format] : cases) EXPECT_EQ(wanted_format(accept), format) << accept;
  for (const PageFormat format :
       {PageFormat::kText, PageFormat::kOpenMetrics, PageFormat::kProtobuf})
    EXPECT_EQ(wanted_format(content_type(format)), format);
}

/// Content with one histogram of these bounds.
PageContent content_of(const NativeHistogram& histogram) {
  PageContent content{{family("d_seconds", MetricType::Histogram)}};
  content.histograms["d_seconds"] = histogram.collect();
  content.families[0].metric.emplace_back().histogram = content.histograms["d_seconds"].classic;
  return content;
}

TEST(PageFormats, OpenMetricsHasExemplarsAndItsOwnNames) {
  NativeHistogram histogram({0.5, 2});
  histogram.observe(0.25, 7);
  histogram.observe(1.5);
  PageContent content = content_of(histogram);
  content.histograms["d_seconds"].exemplars[0]->time_s = 1760000000.25;
  content.families.push_back(family("a_total", MetricType::Counter));
  content.families.back().metric.resize(1);
  content.families.push_back(family("odd", MetricType::Counter));
  content.families.back().metric.resize(1);
  content.families.back().metric[0].timestamp_ms = 1500;
  EXPECT_EQ(page_in(PageFormat::kOpenMetrics, content),
            "# HELP d_seconds Help of d_seconds.\n# TYPE d_seconds histogram\n"
            "d_seconds_count 2\nd_seconds_sum 1.75\n"
            "d_seconds_bucket{le=\"0.5\"} 1 # {step=\"7\"} 0.25 1760000000.250\n"
            "d_seconds_bucket{le=\"2.0\"} 2\nd_seconds_bucket{le=\"+Inf\"} 2\n"
            "# HELP a Help of a_total.\n# TYPE a counter\na_total 0\n"
            "# HELP odd Help of odd.\n# TYPE odd unknown\nodd 0 1.500\n# EOF\n");
  EXPECT_THAT(page_in(PageFormat::kText, content), Not(HasSubstr("step")));
}

TEST(PageFormats, NativeBucketsAreFewerBytesThanThirteenClassicOnes) {
  std::mt19937 random(5);
  for (const double spread : {0.05, 0.3, 1.0}) {
    std::lognormal_distribution<double> step_s(-3, spread);
    NativeHistogram native({});
    NativeHistogram classic(
        {0.001, 0.0025, 0.006, 0.015, 0.04, 0.1, 0.25, 0.6, 1.5, 4, 10, 25, 60});
    for (int i = 0; i < 100000; ++i) {
      const double value = step_s(random);
      native.observe(value);
      classic.observe(value);
    }
    PageContent without = content_of(classic);
    without.histograms.clear();
    const size_t num_native = page_in(PageFormat::kProtobuf, content_of(native)).size();
    const size_t num_classic = page_in(PageFormat::kProtobuf, without).size();
    const size_t num_text = page_in(PageFormat::kText, without).size();
    std::printf(
        "spread %.2f: %zu native buckets in %zu bytes; 13 classic ones in %zu, as text %zu\n",
        spread, native.collect().positive.size(), num_native, num_classic, num_text);
    EXPECT_LT(num_native, num_text);
    EXPECT_LT(num_native, num_classic) << spread;
  }
}

}  // namespace page_formats_test
}  // namespace lockstep::metrics
