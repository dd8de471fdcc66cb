#pragma once

#include <string>
#include <vector>

/// Plots of characters for terminals. Pure functions; any thread.
namespace lockstep::chart {

/// Values that a plot takes; with the scale beside it a line has 74 characters at most.
inline constexpr int kTextPlotColumns = 64;

struct TextPlot {
  std::string heading;
  std::vector<double> values;  ///< [kTextPlotColumns], left to right; one not drawable: no mark
  double x_end = 1;            ///< the x axis goes from 0 to x_end
  std::string x_label;
};

/// The heading, nine rows of marks with the scale's ends (0 is always within), the x axis.
std::string text_plot(const TextPlot& plot);

}  // namespace lockstep::chart
