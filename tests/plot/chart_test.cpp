#include <algorithm>
#include <limits>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plot/plot.h"

namespace lockstep::chart {
namespace chart_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> ys(const std::vector<Point>& points) {
  std::vector<double> list;
  for (const Point& point : points) list.push_back(point.y);
  return list;
}

std::vector<Point> points_of(const std::vector<double>& values) {
  std::vector<Point> points;
  for (size_t i = 0; i < values.size(); ++i) points.push_back({static_cast<double>(i), values[i]});
  return points;
}

int count(const std::string& text, const std::string& part) {
  int num_found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++num_found;
  return num_found;
}

/// Empty if every tag is closed in order, no attribute lacks its quotes and every & begins an
/// entity; else what is wrong. Enough of XML for what charts use.
std::string xml_fault(const std::string& xml) {
  static const std::regex kTag(
      R"re(<(/?)([a-z]+)((?: [a-zA-Z0-9:-]+="[^"<]*")*)(/?)>|&(?:amp|lt|gt|quot);|[<&])re");
  std::vector<std::string> open;
  for (std::sregex_iterator match(xml.begin(), xml.end(), kTag), end; match != end; ++match) {
    const std::string all = match->str(), name = (*match)[2];
    if (all == "<" || all == "&") return "stray " + xml.substr(match->position(), 40);
    if (all.front() == '&' || (*match)[4].length() > 0) continue;
    if ((*match)[1].length() == 0) {
      open.push_back(name);
    } else {
      if (open.empty() || open.back() != name) return "unexpected </" + name + ">";
      open.pop_back();
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

TEST(Ticks, AreRoundAndAboutAsManyAsWanted) {
  EXPECT_DOUBLE_EQ(tick_distance(30, 10), 5);
  EXPECT_DOUBLE_EQ(tick_distance(0.1, 5), 0.02);
  EXPECT_DOUBLE_EQ(tick_distance(1, 5), 0.2);
  EXPECT_DOUBLE_EQ(tick_distance(7e6, 7), 1e6);
  for (const double span : {1e-9, 0.37, 1.0, 2.3, 99.0, 1e12}) {
    const double num_ticks = span / tick_distance(span, 10);
    EXPECT_GE(num_ticks, 10 / 2.5 - 1e-6) << span;
    EXPECT_LE(num_ticks, 10 + 1e-6) << span;
  }
}

TEST(Scales, HoldZeroAndAllValuesInWholeTicks) {
  const Scale scale = scale_of(-0.3, 2.31, 5);
  EXPECT_DOUBLE_EQ(scale.tick, 1);
  EXPECT_DOUBLE_EQ(scale.bottom, -1);
  EXPECT_DOUBLE_EQ(scale.top, 3);
  EXPECT_DOUBLE_EQ(scale.share_of(1), 0.5);
  EXPECT_DOUBLE_EQ(scale_of(0.05, 0.1, 5).bottom, 0);
  EXPECT_DOUBLE_EQ(scale_of(0.05, 0.1, 5).top, 0.1);
  EXPECT_DOUBLE_EQ(scale_of(0, 0, 5).top, 1);
}

TEST(Scales, LogarithmicOnesHaveWholeDecades) {
  const Scale scale = log_scale_of(0.002, 2.3, 7);
  EXPECT_DOUBLE_EQ(scale.bottom, -3);
  EXPECT_DOUBLE_EQ(scale.top, 1);
  EXPECT_DOUBLE_EQ(scale.share_of(0.1), 0.5);
  EXPECT_DOUBLE_EQ(log_scale_of(0.01, 1, 7).top, 0);
  EXPECT_DOUBLE_EQ(log_scale_of(1e-20, 1, 7).tick, 3);
  EXPECT_DOUBLE_EQ(log_scale_of(1, 1, 7).top, 1);
}

TEST(Thinning, KeepsEndsExtremesAndGaps) {
  std::vector<double> values(10'000, 1);
  values[0] = 5;
  values[3333] = 9;
  values[4444] = -2;
  values[7777] = kNan;
  values[9999] = 6;
  const std::vector<Point> thin = thinned(points_of(values), 400);
  EXPECT_LE(thin.size(), 401U);
  EXPECT_EQ(thin.front().y, 5);
  EXPECT_EQ(thin.back().y, 6);
  const auto at = [&](double x) {
    return std::count_if(thin.begin(), thin.end(), [x](const Point& p) { return p.x == x; });
  };
  EXPECT_EQ(at(3333), 1);
  EXPECT_EQ(at(4444), 1);
  EXPECT_EQ(at(7777), 1);
  EXPECT_TRUE(std::is_sorted(thin.begin(), thin.end(),
                             [](const Point& a, const Point& b) { return a.x < b.x; }));
}

TEST(Thinning, KeepsASpikeWhereverItStands) {
  for (size_t spike = 0; spike < 1003; ++spike) {
    std::vector<double> values(1003, 1);
    values[spike] = 9;
    EXPECT_THAT(ys(thinned(points_of(values), 60)), ::testing::Contains(9)) << spike;
  }
}

TEST(Thinning, LeavesFewPointsAlone) {
  EXPECT_THAT(ys(thinned(points_of({3, 1, 2}), 3)), ElementsAre(3, 1, 2));
  EXPECT_TRUE(thinned({}, 400).empty());
}

TEST(Smoothing, TakesTheMeanAroundAndFewerAtTheEnds) {
  EXPECT_THAT(ys(smoothed(points_of({0, 3, 6, 0, 9}), 3)), ElementsAre(1.5, 3, 3, 5, 4.5));
  EXPECT_THAT(ys(smoothed(points_of({1, 2, 4}), 1)), ElementsAre(1, 2, 4));
}

TEST(Smoothing, PassesOverWhatIsNoNumber) {
  const std::vector<double> means = ys(smoothed(points_of({0, 3, kInfinity, 5, 0}), 3));
  EXPECT_DOUBLE_EQ(means[1], 1.5);
  EXPECT_EQ(means[2], kInfinity);
  EXPECT_DOUBLE_EQ(means[3], 2.5);
}

Chart some_chart() {
  return {.title = "a <b> & \"c\"",
          .subtitle = "x < y\n",
          .x_label = "epoch & more",
          .x_end = 4,
          .bars = {{"whole <bar>", "#112233", 0, 4}, {"moment", "#445566", 2, 2}},
          .panels = {{.heading = "one & two",
                      .curves = {{.label = "joined <1>",
                                  .color = "#123456",
                                  .points = {{0, 1}, {1, kNan}, {2, 2}, {3, 1}}},
                                 {.label = "steps",
                                  .color = "#654321",
                                  .points = {{0, 0}, {1, 2}, {2, 2}, {3, 1}},
                                  .marks = {{1, 2}, {3, 1}},
                                  .is_staircase = true}}},
                     {.heading = "empty"}}};
}

TEST(SvgChart, IsWellFormedAndEscapesEveryText) {
  const std::string svg = svg_chart(some_chart());
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg, HasSubstr(">a &lt;b&gt; &amp; &quot;c&quot;</text>"));
  EXPECT_THAT(svg, HasSubstr(">x &lt; y </text>"));
  EXPECT_THAT(svg, HasSubstr(">joined &lt;1&gt;</text>"));
  EXPECT_THAT(svg, HasSubstr(">whole &lt;bar&gt;</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_EQ(count(svg, "<circle"), 2 + 1);  // marks, legend
  EXPECT_EQ(count(svg, "<rect"), 1 + 1);    // background, bar
}

TEST(SvgChart, JoinedLinesHaveGapsAndStaircasesOnlyTheirChanges) {
  const std::string svg = svg_chart(some_chart());
  // The plot is 848 x 180 pixels at (84, 162), values 0 to 2, x from 0 to 4.
  EXPECT_THAT(svg, HasSubstr("d=\"M84.0 252.0h0M508.0 162.0h0L720.0 252.0\""));
  EXPECT_THAT(svg, HasSubstr("d=\"M84.0 342.0h0L296.0 342.0L296.0 162.0L720.0 162.0L720.0 252.0"
                             "L932.0 252.0\""));
}

TEST(SvgChart, TakesALogarithmicAxisOnlyWhereItHelps) {
  Chart drawing{.panels = {{.heading = "loss",
                            .curves = {{.color = "#000", .points = {{0, 3}, {1, 0.002}}}},
                            .prefers_log = true}}};
  EXPECT_THAT(svg_chart(drawing), HasSubstr(">loss (logarithmic)</text>"));
  EXPECT_THAT(svg_chart(drawing), HasSubstr(">0.001</text>"));
  drawing.panels[0].curves[0].points[1].y = 0.2;  // too little between them
  EXPECT_THAT(svg_chart(drawing), HasSubstr(">loss</text>"));
  drawing.panels[0].curves[0].points[1].y = 0;
  EXPECT_THAT(svg_chart(drawing), HasSubstr(">loss</text>"));
}

TEST(SvgChart, StaysSmallAndSurvivesWildNumbers) {
  std::vector<double> values;
  for (int i = 0; i < 100'000; ++i) values.push_back(i % 7);
  values[17] = kInfinity;
  values[18] = 1e308;
  values[19] = -1e-320;
  const std::string svg = svg_chart(
      {.x_end = kNan, .panels = {{.curves = {{.color = "#000", .points = points_of(values)}}}}});
  EXPECT_LT(svg.size(), 20'000U);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(TextPlots, PutAMarkInTheRowOfEachValue) {
  TextPlot plot{.heading = "rate", .values = std::vector<double>(kTextPlotColumns, 0.5)};
  plot.x_end = 12.5;
  plot.x_label = "epochs";
  plot.values[0] = 1;
  plot.values[1] = kNan;
  plot.values[2] = 0;
  std::string expected = "rate\n       1 |█\n";
  for (int i = 0; i < 3; ++i) expected += "         |\n";
  expected += "         |   ";
  for (int i = 3; i < kTextPlotColumns; ++i) expected += "█";
  for (int i = 0; i < 3; ++i) expected += "\n         |";
  expected += "\n       0 |  █\n         +" + std::string(kTextPlotColumns, '-') + "\n          0" +
              std::string(kTextPlotColumns - 5, ' ') + "12.5 epochs\n";
  EXPECT_EQ(text_plot(plot), expected);
}

TEST(TextPlots, ShowValuesBelowZero) {
  const std::string text = text_plot({.heading = "h", .values = {-4, 4}, .x_label = "x"});
  EXPECT_THAT(text, HasSubstr("       4 | █\n"));
  EXPECT_THAT(text, HasSubstr("      -4 |█\n"));
}

}  // namespace chart_test
}  // namespace lockstep::chart
