#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

/// Charts as SVG files and as text for terminals. Pure functions over plain values; any thread.
namespace lockstep::chart {

struct Point {
  double x = 0, y = 0;
};

/// False for NaN, infinity and numbers that would overflow an axis. Charts leave such values out: a
/// line has a gap there.
bool is_drawable(double value);

/// Round distance between ticks (1, 2 or 5 times a power of ten), for about `wanted` of them in
/// `span`. span > 0, wanted > 0.
double tick_distance(double span, int wanted);

/// Axis of whole ticks from bottom to top: values with zero among them, or powers of ten.
struct Scale {
  double bottom = 0, top = 1, tick = 1;
  bool is_log = false;

  /// Position of a drawable value (positive if is_log): 0 at the bottom, 1 at the top.
  double share_of(double value) const;
};

/// Scale for drawable values with about `num_ticks` ticks; 0 to 1 if both are 0.
Scale scale_of(double least, double greatest, int num_ticks);

/// Scale of whole decades; 0 < least <= greatest.
Scale log_scale_of(double least, double greatest, int max_ticks);

/// At most about max_points of the points (rising x), such that a line through them looks alike.
/// Keeps the ends, and of each stretch the lowest, the highest and one not drawable point.
std::vector<Point> thinned(const std::vector<Point>& points, size_t max_points);

/// Each drawable y replaced by the mean of the drawable ones among the `width` (odd) points around.
std::vector<Point> smoothed(std::vector<Point> points, size_t width);

struct Curve {
  std::string label;               ///< in the legend of the panel; empty: not there
  std::string color;               ///< as SVG writes it: #1f6fb2
  std::vector<Point> points = {};  ///< rising x; more than about 400 are thinned
  std::vector<Point> marks = {};   ///< dots on the curve; left out if there are more than 400
  bool is_staircase = false;       ///< a value stays until the next point, the last to the end
  bool is_light = false;           ///< thin and pale
};

/// One coordinate system. The y axis holds all values, and 0 and least_top unless it is
/// logarithmic.
struct Panel {
  std::string heading;
  std::vector<Curve> curves = {};  ///< later ones lie above earlier ones
  double least_top = 0;
  bool prefers_log = false;  ///< logarithmic if all values are positive and span two decades
};

/// A stretch of the x axis, drawn above the panels. begin = end: a moment, drawn as a diamond.
struct Bar {
  std::string label, color;
  double begin = 0, end = 0;
};

/// Panels over one x axis from 0 to x_end > 0.
struct Chart {
  std::string title, subtitle, x_label;
  double x_end = 1;
  std::vector<Bar> bars = {};
  std::vector<Panel> panels = {};
};

/// An SVG file, 960 pixels wide: well-formed XML, no scripts, no outside references.
std::string svg_chart(const Chart& chart);

/// Values that a text plot takes; with the scale a line has 74 characters at most.
inline constexpr int kTextPlotColumns = 64;

struct TextPlot {
  std::string heading;
  std::vector<double> values;  ///< [kTextPlotColumns], left to right
  double x_end = 1;            ///< the x axis goes from 0 to x_end
  std::string x_label;
};

/// The heading, nine rows of marks with the ends of the scale (0 is always within), the x axis.
std::string text_plot(const TextPlot& plot);

}  // namespace lockstep::chart
