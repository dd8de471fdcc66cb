#include "plot/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

// Small SVG and text plots without dependencies. Data are reduced before drawing, so files stay
// small for any length of run.
namespace lockstep::chart {
namespace {

// Geometry in pixels: title, bars, then the panels from top to bottom.
constexpr double kWidth = 960, kLeft = 84, kEnd = 932, kTop = 64, kBarHeight = 22, kGap = 54,
                 kHeadingHeight = 32, kPanelHeight = 180;
constexpr double kCharWidth = 6.6, kSmallCharWidth = 5.94;  // approximate: fonts differ
constexpr size_t kMaxPoints = 400;                          // per curve
constexpr double kRounding = 1e-9;  // of a tick, so that 0.3 / 0.1 counts as three ticks
constexpr int kTextRows = 8;        // above the lowest row

constexpr const char* kStyle =
    "text{font-family:'DejaVu Sans',Helvetica,Arial,sans-serif;font-size:12px;fill:#33373d}"
    ".title{font-size:17px;font-weight:600}.head{font-weight:600}"
    ".small{font-size:11px;fill:#5b626b}"
    ".grid{stroke:#e3e6ea;stroke-width:1}.axis{stroke:#8b929b;stroke-width:1}"
    ".curve{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    ".light{stroke-width:1;stroke-opacity:0.4}";

/// Escapes XML markup and replaces control characters by blanks.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text)
    out += c == '&'   ? std::string("&amp;")
           : c == '<' ? std::string("&lt;")
           : c == '>' ? std::string("&gt;")
           : c == '"' ? std::string("&quot;")
                      : std::string(1, static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
  return out;
}

std::string text(double x, double y, const char* anchor, const char* style,
                 std::string_view content) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n",
                     x, y, anchor, style, escaped(content));
}

std::string line(const char* style, double x1, double y1, double x2, double y2) {
  return fmt::format("<path class=\"{}\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", style, x1, y1, x2,
                     y2);
}

std::string dot(double x, double y, std::string_view color) {
  return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\"/>\n", x, y,
                     escaped(color));
}

std::string stroke(const Curve& curve, std::string_view path) {
  return fmt::format("<path class=\"curve{}\" stroke=\"{}\" d=\"{}\"/>\n",
                     curve.is_light ? " light" : "", escaped(curve.color), path);
}

/// Returns a scale for all drawable values of a panel.
Scale scale_of_panel(const Panel& panel) {
  double least = std::numeric_limits<double>::infinity(), greatest = -least;
  for (const Curve& curve : panel.curves)
    for (const Point& point : curve.points) {
      if (!is_drawable(point.y)) continue;
      least = std::min(least, point.y);
      greatest = std::max(greatest, point.y);
    }
  // A logarithmic axis pays off from two decades on.
  if (panel.prefers_log && least > 0 && least * 100 <= greatest)
    return log_scale_of(least, greatest, 7);
  return scale_of(std::min(least, 0.0), std::max(greatest, panel.least_top), 5);
}

/// Returns the corners of a staircase through the points where the value changes.
std::vector<Point> staircase(const std::vector<Point>& points, double x_end) {
  std::vector<Point> changes, corners;
  for (const Point& point : points)
    if (is_drawable(point.y) && (changes.empty() || point.y != changes.back().y))
      changes.push_back(point);
  for (const Point& point : thinned(changes, kMaxPoints)) {
    if (!corners.empty()) corners.push_back({point.x, corners.back().y});
    corners.push_back(point);
  }
  if (!corners.empty()) corners.push_back({x_end, corners.back().y});
  return corners;
}

/// Builder of a chart from top to bottom. `y_` is the top of the next part.
class Drawing {
 public:
  explicit Drawing(const Chart& chart)
      : chart_(chart), x_end_(is_drawable(chart.x_end) && chart.x_end > 0 ? chart.x_end : 1) {}

  std::string finish() {
    for (const Bar& bar : chart_.bars) add_bar(bar);
    y_ += chart_.bars.empty() ? kHeadingHeight : kGap;
    for (const Panel& panel : chart_.panels) add_panel(panel);
    out_ += text((kLeft + kEnd) / 2, y_ - kGap + 38, "middle", "", chart_.x_label);
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\">\n<title>{2}</title>\n<style>{3}</style>\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n{4}{5}{6}</svg>\n",
        kWidth, y_ + 6, escaped(chart_.title), kStyle,
        text(kLeft, 28, "start", "title", chart_.title),
        text(kLeft, 47, "start", "small", chart_.subtitle), out_);
  }

 private:
  double x_of(double x) const { return kLeft + (kEnd - kLeft) * std::clamp(x / x_end_, 0.0, 1.0); }
  double y_of(double y) const { return y_ + kPanelHeight * (1 - scale_.share_of(y)); }

  void add_bar(const Bar& bar) {
    const double begin = x_of(bar.begin), middle = y_ + kBarHeight / 2;
    const bool is_moment = bar.begin == bar.end;
    if (is_moment)
      out_ += fmt::format("<path d=\"M{:.1f} {:.1f}l6 6l-6 6l-6 -6z\" fill=\"{}\"/>\n", begin,
                          middle - 6, escaped(bar.color));
    else
      out_ += fmt::format(
          "<rect x=\"{0:.1f}\" y=\"{1:.1f}\" width=\"{2:.1f}\" height=\"{3:.1f}\" rx=\"4\" "
          "fill=\"{4}\" fill-opacity=\"0.16\" stroke=\"{4}\"/>\n",
          begin, y_ + 2, std::max(2.0, x_of(bar.end) - begin), kBarHeight - 4, escaped(bar.color));
    // A label that does not fit after the bar's begin is aligned to its end.
    const bool fits = begin + 10 + kCharWidth * static_cast<double>(bar.label.size()) <= kEnd;
    const double else_x = is_moment ? begin - 10 : kEnd - 10;
    out_ += text(fits ? begin + 10 : else_x, middle + 4, fits ? "start" : "end", "", bar.label);
    y_ += kBarHeight;
  }

  void add_panel(const Panel& panel) {
    scale_ = scale_of_panel(panel);
    out_ += text(kLeft, y_ - 10, "start", "head",
                 panel.heading + (scale_.is_log ? " (logarithmic)" : ""));
    add_grid();
    for (const Curve& curve : panel.curves) add_curve(curve);
    add_legend(panel.curves);
    y_ += kPanelHeight + kGap;
  }

  void add_grid() {
    const double bottom_y = y_ + kPanelHeight;
    const double num_ticks = std::round((scale_.top - scale_.bottom) / scale_.tick);
    for (double i = 0; i <= num_ticks; ++i) {
      const double y = y_ + kPanelHeight * (1 - i / num_ticks);
      const double value = (std::round(scale_.bottom / scale_.tick) + i) * scale_.tick;
      out_ += line("grid", kLeft, y, kEnd, y);
      out_ +=
          text(kLeft - 8, y + 4, "end", "small",
               fmt::format("{:.4g}",
                           scale_.is_log ? std::pow(10, scale_.bottom + i * scale_.tick) : value));
    }
    const double tick = tick_distance(x_end_, 10);
    for (int i = 0; i * tick <= x_end_ * (1 + 1e-9); ++i) {
      const double x = x_of(i * tick);
      out_ += line("grid", x, y_, x, bottom_y);
      out_ += text(x, bottom_y + 16, "middle", "small", fmt::format("{:.4g}", i * tick));
    }
    out_ += line("axis", kLeft, y_, kLeft, bottom_y);
    // A logarithmic axis has no zero.
    const double axis_y = scale_.is_log ? bottom_y : y_of(0);
    out_ += line("axis", kLeft, axis_y, kEnd, axis_y);
  }

  void add_curve(const Curve& curve) {
    std::string path;
    bool pen_is_down = false;
    for (const Point& point :
         curve.is_staircase ? staircase(curve.points, x_end_) : thinned(curve.points, kMaxPoints)) {
      const bool draws = is_drawable(point.y);
      if (draws)  // h0: a single point becomes a dot
        path += fmt::format("{}{:.1f} {:.1f}{}", pen_is_down ? "L" : "M", x_of(point.x),
                            y_of(point.y), pen_is_down ? "" : "h0");
      // A gap in the values lifts the pen.
      pen_is_down = draws;
    }
    if (!path.empty()) out_ += stroke(curve, path);
    if (curve.marks.size() > kMaxPoints) return;  // too many to distinguish
    for (const Point& mark : curve.marks)
      if (is_drawable(mark.y)) out_ += dot(x_of(mark.x), y_of(mark.y), curve.color);
  }

  /// Draws the legend above the panel, from right to left: a piece of the line, then its label.
  void add_legend(const std::vector<Curve>& curves) {
    double x = kEnd;
    for (auto curve = curves.rbegin(); curve != curves.rend(); ++curve) {
      if (curve->label.empty()) continue;
      out_ += text(x, y_ - 10, "end", "small", curve->label);
      x -= kSmallCharWidth * static_cast<double>(curve->label.size()) + 12;
      out_ += stroke(*curve, fmt::format("M{:.1f} {:.1f}h22", x - 16, y_ - 14));
      if (!curve->marks.empty()) out_ += dot(x - 5, y_ - 14, curve->color);
      x -= 36;
    }
  }

  const Chart& chart_;
  double x_end_;
  double y_ = kTop;
  Scale scale_;  ///< of the current panel
  std::string out_;
};

}  // namespace

bool is_drawable(double value) { return std::abs(value) <= 1e300; }  // false for NaN

double tick_distance(double span, int wanted) {
  const double raw = span / wanted;
  // Smallest of 1, 2, 5, 10 times a power of ten that gives at most `wanted` ticks.
  const double unit = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * unit * (1 + kRounding)) return factor * unit;
  return 10 * unit;
}

Scale scale_of(double least, double greatest, int num_ticks) {
  least = std::min(least, 0.0);
  greatest = std::max(greatest, 0.0);
  // All values are 0: any axis will do.
  if (greatest - least < 1e-300) return {0, 1, tick_distance(1, num_ticks)};
  const double tick = tick_distance(greatest - least, num_ticks);
  return {std::floor(least / tick + kRounding) * tick,
          std::ceil(greatest / tick - kRounding) * tick, tick};
}

Scale log_scale_of(double least, double greatest, int max_ticks) {
  const double bottom = std::floor(std::log10(least) + kRounding);
  // At least one decade, even if all values are equal.
  const double decades = std::max(1.0, std::ceil(std::log10(greatest) - kRounding) - bottom);
  const double tick = std::ceil(decades / max_ticks);
  return {bottom, bottom + std::ceil(decades / tick) * tick, tick, true};
}

double Scale::share_of(double value) const {
  return ((is_log ? std::log10(value) : value) - bottom) / (top - bottom);
}

std::vector<Point> thinned(const std::vector<Point>& points, size_t max_points) {
  if (points.size() <= max_points || points.size() <= 2) return points;
  const size_t num_stretches = std::max<size_t>(1, max_points / 2 - 1);  // two points per section
  const size_t num_inner = points.size() - 2, none = points.size();
  std::vector<Point> kept = {points.front()};
  for (size_t stretch = 0; stretch < num_stretches; ++stretch) {
    size_t lowest = none, highest = none, gap = none;
    const size_t end = 1 + num_inner * (stretch + 1) / num_stretches;
    for (size_t i = 1 + num_inner * stretch / num_stretches; i < end; ++i) {
      const double y = points[i].y;
      if (!is_drawable(y)) gap = i;
      if (is_drawable(y) && (lowest == none || y < points[lowest].y)) lowest = i;
      if (is_drawable(y) && (highest == none || y > points[highest].y)) highest = i;
    }
    // In their original order, so that the line does not run backwards.
    std::array<size_t, 3> chosen = {lowest, highest, gap};
    std::sort(chosen.begin(), chosen.end());
    for (size_t i = 0; i < chosen.size() && chosen[i] != none; ++i)
      if (i == 0 || chosen[i] != chosen[i - 1]) kept.push_back(points[chosen[i]]);
  }
  kept.push_back(points.back());
  return kept;
}

std::vector<Point> smoothed(std::vector<Point> points, size_t width) {
  const std::vector<Point> raw = points;
  for (size_t i = 0; i < raw.size(); ++i) {
    if (!is_drawable(raw[i].y)) continue;
    double sum = 0, num_values = 0;
    const size_t end = std::min(i + width / 2 + 1, raw.size());
    // The window is cut at both ends of the curve.
    for (size_t k = i - std::min(width / 2, i); k < end; ++k) {
      if (!is_drawable(raw[k].y)) continue;
      sum += raw[k].y;
      ++num_values;
    }
    points[i].y = sum / num_values;
  }
  return points;
}

std::string svg_chart(const Chart& chart) { return Drawing(chart).finish(); }

std::string text_plot(const TextPlot& plot) {
  double bottom = 0, top = 0;
  for (const double value : plot.values) {
    if (!is_drawable(value)) continue;
    bottom = std::min(bottom, value);
    top = std::max(top, value);
  }
  std::string out = plot.heading + "\n";
  for (int row = kTextRows; row >= 0; --row) {
    std::string marks;
    for (const double value : plot.values) {
      // Row kTextRows is the top, row 0 the bottom.
      const double share = top > bottom ? (value - bottom) / (top - bottom) : 0;
      marks += is_drawable(value) && std::lround(share * kTextRows) == row ? "█" : " ";
    }
    // No blanks at the end of lines.
    marks.erase(marks.find_last_not_of(' ') + 1);
    const std::string end = row == 0           ? fmt::format("{:.4g}", bottom)
                            : row == kTextRows ? fmt::format("{:.4g}", top)
                                               : "";
    out += fmt::format("{:>8} |{}\n", end, marks);
  }
  return out + fmt::format("{:>8} +{:-<{}}\n{:>8}  0{:>{}} {}\n", "", "", kTextPlotColumns, "",
                           fmt::format("{:.4g}", plot.x_end), kTextPlotColumns - 1, plot.x_label);
}

}  // namespace lockstep::chart
