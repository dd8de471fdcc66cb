#pragma once

#include <cstddef>
#include <string>
#include <vector>

/// Charts as SVG files and as text for terminals. Pure functions over plain values; any thread.
namespace lockstep::chart {

struct Point {
  double x = 0, y = 0;
};

/// False for NaN, infinity and numbers that would overflow an axis. Charts omit such values; a line
/// has a gap there.
bool is_drawable(double value);

/// Returns a round distance between ticks (1, 2 or 5 times a power of ten), for about `wanted`
/// ticks in `span`. span > 0, wanted > 0.
double tick_distance(double span, int wanted);

/// Axis from one tick to another: linear and including zero, or logarithmic with powers of ten.
struct Scale {
  double bottom = 0, top = 1, tick = 1;
  bool is_log = false;

  /// Position of a drawable value (positive if is_log): 0 at the bottom, 1 at the top.
  double share_of(double value) const;
};

/// Returns a scale for drawable values with about `num_ticks` ticks; 0 to 1 if both values are 0.
Scale scale_of(double least, double greatest, int num_ticks);

/// Returns a scale of whole decades; 0 < least <= greatest.
Scale log_scale_of(double least, double greatest, int max_ticks);

/// Reduces points (increasing x) to about max_points, so that a line through them looks alike.
/// Keeps both ends. Of each section it keeps the lowest, the highest and one point that is not
/// drawable.
std::vector<Point> thinned(const std::vector<Point>& points, size_t max_points);

/// Replaces each drawable y by the mean of the drawable ones among the `width` (odd) nearest
/// points.
std::vector<Point> smoothed(std::vector<Point> points, size_t width);

struct Curve {
  std::string label;               ///< in the panel's legend; empty: not in the legend
  std::string color;               ///< in SVG's notation: #1f6fb2
  std::vector<Point> points = {};  ///< increasing x; more than about 400 are thinned
  std::vector<Point> marks = {};   ///< dots on the curve; omitted if there are more than 400
  bool is_staircase = false;       ///< a value holds until the next point or the end
  bool is_light = false;           ///< thin and pale
};

/// One coordinate system. The y axis includes all values. A linear one also includes 0 and
/// least_top.
struct Panel {
  std::string heading;
  std::vector<Curve> curves = {};  ///< drawn in this order, later ones on top
  double least_top = 0;
  bool prefers_log = false;  ///< logarithmic if all values are positive and span two decades
};

/// Range of the x axis, drawn above the panels. begin = end: a single moment, drawn as a diamond.
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

/// Returns an SVG file, 960 pixels wide: well-formed XML, no scripts, no external references.
std::string svg_chart(const Chart& chart);

/// Number of values of a text plot. A line has at most 74 characters with the scale.
inline constexpr int kTextPlotColumns = 64;

struct TextPlot {
  std::string heading;
  std::vector<double> values;  ///< [kTextPlotColumns], left to right
  double x_end = 1;            ///< the x axis goes from 0 to x_end
  std::string x_label;
};

/// Returns the heading, nine rows of marks with the scale's ends (always including 0), and the x
/// axis.
std::string text_plot(const TextPlot& plot);

}  // namespace lockstep::chart
