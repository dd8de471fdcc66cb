#include "plot/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace lockstep::chart {
namespace {

// Geometry in pixels: title, bars, then the panels, one below the other.
constexpr double kWidth = 960, kLeft = 84, kRight = 28, kTop = 64, kBarHeight = 22, kGap = 54,
                 kHeadingHeight = 32, kPanelHeight = 180;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotEnd = kLeft + kPlotWidth;
constexpr double kCharWidth = 6.6, kSmallCharWidth = 5.94;  // about: fonts differ
constexpr size_t kMaxPoints = 400;                          // of a curve

constexpr const char* kStyle =
    "text{font-family:'DejaVu Sans',Helvetica,Arial,sans-serif;font-size:12px;fill:#33373d}"
    ".title{font-size:17px;font-weight:600}.head{font-weight:600}"
    ".small{font-size:11px;fill:#5b626b}"
    ".grid{stroke:#e3e6ea;stroke-width:1}.axis{stroke:#8b929b;stroke-width:1}"
    ".curve{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    ".light{stroke-width:1;stroke-opacity:0.4}";

std::string text(double x, double y, const char* anchor, const char* style,
                 std::string_view content) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n",
                     x, y, anchor, style, escaped(content));
}

std::string line(const char* style, double x1, double y1, double x2, double y2) {
  return fmt::format(
      "<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", style, x1,
      y1, x2, y2);
}

std::string dot(double x, double y, std::string_view color) {
  return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\"/>\n", x, y,
                     escaped(color));
}

std::string stroke(const Curve& curve, std::string_view path) {
  return fmt::format("<path class=\"curve{}\" stroke=\"{}\" d=\"{}\"/>\n",
                     curve.is_light ? " light" : "", escaped(curve.color), path);
}

Scale scale_of_panel(const Panel& panel) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double least = kInfinity, greatest = -kInfinity;
  for (const Curve& curve : panel.curves) {
    for (const Point& point : curve.points) {
      if (!is_drawable(point.y)) continue;
      least = std::min(least, point.y);
      greatest = std::max(greatest, point.y);
    }
  }
  if (panel.prefers_log && least > 0 && least * 100 <= greatest)
    return log_scale_of(least, greatest, 7);
  return scale_of(std::min(least, 0.0), std::max(greatest, panel.least_top), 5);
}

/// Of the i-th tick from below.
std::string tick_label(const Scale& scale, double i) {
  const double value = (std::round(scale.bottom / scale.tick) + i) * scale.tick;
  return fmt::format("{:.4g}", scale.is_log ? std::pow(10, scale.bottom + i * scale.tick) : value);
}

/// Without points at which a staircase does not change.
std::vector<Point> changes_of(const std::vector<Point>& points) {
  std::vector<Point> kept;
  for (const Point& point : points)
    if (is_drawable(point.y) && (kept.empty() || point.y != kept.back().y)) kept.push_back(point);
  return kept;
}

class Drawing {
 public:
  explicit Drawing(const Chart& chart)
      : chart_(chart), x_end_(is_drawable(chart.x_end) && chart.x_end > 0 ? chart.x_end : 1) {}

  std::string finish() {
    for (const Bar& bar : chart_.bars) add_bar(bar);
    y_ += chart_.bars.empty() ? kHeadingHeight : kGap;
    for (const Panel& panel : chart_.panels) add_panel(panel);
    out_ += text(kLeft + kPlotWidth / 2, y_ - kGap + 38, "middle", "", chart_.x_label);
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\">\n<title>{2}</title>\n<style>{3}</style>\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n{4}{5}{6}</svg>\n",
        kWidth, y_ + 6, escaped(chart_.title), kStyle,
        text(kLeft, 28, "start", "title", chart_.title),
        text(kLeft, 47, "start", "small", chart_.subtitle), out_);
  }

 private:
  double x_of(double x) const { return kLeft + kPlotWidth * std::clamp(x / x_end_, 0.0, 1.0); }
  double y_of(double y, const Scale& scale) const {
    return y_ + kPanelHeight * (1 - scale.share_of(y));
  }

  void add_bar(const Bar& bar) {
    const double begin = x_of(bar.begin), middle = y_ + kBarHeight / 2;
    const bool is_moment = bar.begin == bar.end;
    if (is_moment) {
      out_ += fmt::format("<path d=\"M{:.1f} {:.1f}l6 6l-6 6l-6 -6z\" fill=\"{}\"/>\n", begin,
                          middle - 6, escaped(bar.color));
    } else {
      out_ += fmt::format(
          "<rect x=\"{0:.1f}\" y=\"{1:.1f}\" width=\"{2:.1f}\" height=\"{3:.1f}\" rx=\"4\" "
          "fill=\"{4}\" fill-opacity=\"0.16\" stroke=\"{4}\"/>\n",
          begin, y_ + 2, std::max(2.0, x_of(bar.end) - begin), kBarHeight - 4, escaped(bar.color));
    }
    const double label_width = kCharWidth * static_cast<double>(bar.label.size());
    const bool fits = begin + 10 + label_width <= kPlotEnd;
    const double else_x = is_moment ? begin - 10 : kPlotEnd - 10;
    out_ += text(fits ? begin + 10 : else_x, middle + 4, fits ? "start" : "end", "", bar.label);
    y_ += kBarHeight;
  }

  void add_panel(const Panel& panel) {
    const Scale scale = scale_of_panel(panel);
    out_ += text(kLeft, y_ - 10, "start", "head",
                 panel.heading + (scale.is_log ? " (logarithmic)" : ""));
    add_grid(scale);
    for (const Curve& curve : panel.curves) add_curve(curve, scale);
    add_legend(panel.curves);
    y_ += kPanelHeight + kGap;
  }

  void add_grid(const Scale& scale) {
    const double bottom_y = y_ + kPanelHeight;
    const double num_ticks = std::round((scale.top - scale.bottom) / scale.tick);
    for (double i = 0; i <= num_ticks; ++i) {
      const double y = y_ + kPanelHeight * (1 - i / num_ticks);
      out_ += line("grid", kLeft, y, kPlotEnd, y);
      out_ += text(kLeft - 8, y + 4, "end", "small", tick_label(scale, i));
    }
    const double tick = tick_distance(x_end_, 10);
    for (int i = 0; i * tick <= x_end_ * (1 + 1e-9); ++i) {
      const double x = x_of(i * tick);
      out_ += line("grid", x, y_, x, bottom_y);
      out_ += text(x, bottom_y + 16, "middle", "small", fmt::format("{:.4g}", i * tick));
    }
    out_ += line("axis", kLeft, y_, kLeft, bottom_y);
    const double axis_y = scale.is_log ? bottom_y : y_of(0, scale);
    out_ += line("axis", kLeft, axis_y, kPlotEnd, axis_y);
  }

  void add_curve(const Curve& curve, const Scale& scale) {
    const std::string path = curve.kind == LineKind::kSteps
                                 ? staircase(changes_of(curve.points), scale)
                                 : polyline(thinned(curve.points, kMaxPoints), scale);
    if (!path.empty()) out_ += stroke(curve, path);
    if (curve.marks.size() > kMaxPoints) return;  // they could not be told apart
    for (const Point& mark : curve.marks)
      if (is_drawable(mark.y)) out_ += dot(x_of(mark.x), y_of(mark.y, scale), curve.color);
  }

  std::string polyline(const std::vector<Point>& points, const Scale& scale) const {
    std::string path;
    bool pen_is_down = false;
    for (size_t i = 0; i < points.size(); ++i) {
      const bool draws = is_drawable(points[i].y);
      const bool goes_on = i + 1 < points.size() && is_drawable(points[i + 1].y);
      if (draws)
        path += fmt::format("{}{:.1f} {:.1f}{}", pen_is_down ? 'L' : 'M', x_of(points[i].x),
                            y_of(points[i].y, scale),
                            pen_is_down || goes_on ? "" : "h0");  // a point alone is a dot
      pen_is_down = draws;
    }
    return path;
  }

  std::string staircase(const std::vector<Point>& changes, const Scale& scale) const {
    if (changes.empty()) return "";
    const Point& first = changes.front();
    std::string path = fmt::format("M{:.1f} {:.1f}", x_of(first.x), y_of(first.y, scale));
    for (const Point& point : thinned(changes, kMaxPoints))
      path += fmt::format("H{:.1f}V{:.1f}", x_of(point.x), y_of(point.y, scale));
    return path + fmt::format("H{:.1f}", kPlotEnd);
  }

  /// Above the panel, right to left: a piece of the line, then its label.
  void add_legend(const std::vector<Curve>& curves) {
    double x = kPlotEnd;
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
  std::string out_;
};

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string svg_chart(const Chart& chart) { return Drawing(chart).finish(); }

}  // namespace lockstep::chart
