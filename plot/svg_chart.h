#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plot/chart_points.h"

/// Charts as SVG files: panels over one common x axis. Pure functions over plain values; any
/// thread.
namespace lockstep::chart {

/// How a curve goes from one point to the next.
enum class LineKind {
  kJoined,  ///< straight
  kSteps,   ///< the value stays until the next point, the last one to the end of the axis
};

struct Curve {
  std::string label;  ///< in the panel's legend; empty: not there
  std::string color;  ///< as SVG writes it: #1f6fb2
  LineKind kind = LineKind::kJoined;
  std::vector<Point> points;  ///< rising x; more than about 400 are thinned out
  std::vector<Point> marks;   ///< dots on the curve; left out if there are more than 400
  bool is_light = false;      ///< thin and pale, behind what matters
};

/// One coordinate system. Its y axis holds all values, and 0 and least_top unless it is
/// logarithmic.
struct Panel {
  std::string heading;
  std::vector<Curve> curves;  ///< later ones lie above earlier ones
  double least_top = 0;
  /// Logarithmic if all values are positive and they span two decades or more; the heading then
  /// says so.
  bool prefers_log = false;
};

/// A stretch of the x axis, drawn above the panels. begin = end: a single moment, as a diamond.
struct Bar {
  std::string label;
  std::string color;
  double begin = 0;
  double end = 0;
};

struct Chart {
  std::string title;
  std::string subtitle;
  std::string x_label;
  double x_end = 1;  ///< the axis goes from 0 to x_end > 0
  std::vector<Bar> bars;
  std::vector<Panel> panels;
};

/// The text with what XML would take for markup, and control characters, replaced.
std::string escaped(std::string_view text);

/// The chart as an SVG file, 960 pixels wide: well-formed XML, no scripts, no outside references.
std::string svg_chart(const Chart& chart);

}  // namespace lockstep::chart
