#include "plot/chart_points.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::chart {
namespace {

constexpr double kRounding = 1e-9;  // of a tick, so that 0.3 / 0.1 is three ticks

/// Keeps of points [begin, end) the lowest, the highest and one that cannot be drawn, in order.
void keep_extremes(const std::vector<Point>& points, size_t begin, size_t end,
                   std::vector<Point>* kept) {
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t lowest = kNone, highest = kNone, gap = kNone;
  for (size_t i = begin; i < end; ++i) {
    const double y = points[i].y;
    if (!is_drawable(y)) {
      gap = i;
      continue;
    }
    if (lowest == kNone || y < points[lowest].y) lowest = i;
    if (highest == kNone || y > points[highest].y) highest = i;
  }
  std::array<size_t, 3> chosen = {lowest, highest, gap};
  std::sort(chosen.begin(), chosen.end());
  for (size_t i = 0; i < chosen.size() && chosen[i] != kNone; ++i)
    if (i == 0 || chosen[i] != chosen[i - 1]) kept->push_back(points[chosen[i]]);
}

}  // namespace

bool is_drawable(double value) { return std::abs(value) <= 1e300; }  // false for NaN

double tick_distance(double span, int wanted) {
  const double raw = span / wanted;
  const double unit = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * unit * (1 + kRounding)) return factor * unit;
  return 10 * unit;
}

Scale scale_of(double least, double greatest, int num_ticks) {
  least = std::min(least, 0.0);
  greatest = std::max(greatest, 0.0);
  if (greatest - least < 1e-300) return {0, 1, tick_distance(1, num_ticks)};
  const double tick = tick_distance(greatest - least, num_ticks);
  return {std::floor(least / tick + kRounding) * tick,
          std::ceil(greatest / tick - kRounding) * tick, tick};
}

Scale log_scale_of(double least, double greatest, int max_ticks) {
  const double bottom = std::floor(std::log10(least) + kRounding);
  const double decades = std::max(1.0, std::ceil(std::log10(greatest) - kRounding) - bottom);
  const double tick = std::ceil(decades / max_ticks);
  return {bottom, bottom + std::ceil(decades / tick) * tick, tick, true};
}

double Scale::share_of(double value) const {
  return ((is_log ? std::log10(value) : value) - bottom) / (top - bottom);
}

std::vector<Point> thinned(const std::vector<Point>& points, size_t max_points) {
  const size_t num_points = points.size();
  if (num_points <= max_points || num_points <= 2) return points;
  const size_t num_stretches = std::max<size_t>(1, max_points / 2 - 1);  // two points of each
  const size_t num_inner = num_points - 2;
  std::vector<Point> kept = {points.front()};
  for (size_t i = 0; i < num_stretches; ++i)
    keep_extremes(points, 1 + num_inner * i / num_stretches,
                  1 + num_inner * (i + 1) / num_stretches, &kept);
  kept.push_back(points.back());
  return kept;
}

std::vector<Point> smoothed(const std::vector<Point>& points, size_t width) {
  std::vector<Point> means = points;
  for (size_t i = 0; i < points.size(); ++i) {
    if (!is_drawable(points[i].y)) continue;
    const size_t begin = i - std::min(width / 2, i);
    const size_t end = std::min(i + width / 2 + 1, points.size());
    double sum = 0, num_values = 0;
    for (size_t k = begin; k < end; ++k) {
      if (!is_drawable(points[k].y)) continue;
      sum += points[k].y;
      ++num_values;
    }
    means[i].y = sum / num_values;
  }
  return means;
}

}  // namespace lockstep::chart
