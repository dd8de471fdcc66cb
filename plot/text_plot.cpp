#include "plot/text_plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "plot/chart_points.h"

namespace lockstep::chart {
namespace {

constexpr int kRows = 8;  // above the lowest

/// The row of each value, counted from below; -1: none.
std::vector<long> rows_of(const std::vector<double>& values, double bottom, double top) {
  std::vector<long> rows;
  for (const double value : values) {
    const double share = top > bottom ? (value - bottom) / (top - bottom) : 0;
    rows.push_back(is_drawable(value) ? std::lround(share * kRows) : -1);
  }
  return rows;
}

}  // namespace

std::string text_plot(const TextPlot& plot) {
  double bottom = 0, top = 0;
  for (const double value : plot.values) {
    if (!is_drawable(value)) continue;
    bottom = std::min(bottom, value);
    top = std::max(top, value);
  }
  const std::vector<long> rows = rows_of(plot.values, bottom, top);
  std::string out = plot.heading + "\n";
  for (int row = kRows; row >= 0; --row) {
    std::string marks;
    for (const long marked : rows) marks += marked == row ? "█" : " ";
    marks.erase(marks.find_last_not_of(' ') + 1);
    const bool labelled = row == kRows || row == 0;
    out += fmt::format("{:>8} |{}\n",
                       labelled ? fmt::format("{:.4g}", row == 0 ? bottom : top) : "", marks);
  }
  return out + fmt::format("{:>8} +{:-<{}}\n{:>8}  0{:>{}} {}\n", "", "", kTextPlotColumns, "",
                           fmt::format("{:.4g}", plot.x_end), kTextPlotColumns - 1, plot.x_label);
}

}  // namespace lockstep::chart
