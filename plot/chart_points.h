#pragma once

#include <cstddef>
#include <vector>

/// What charts are made of, apart from how they are drawn. Pure functions; any thread.
namespace lockstep::chart {

struct Point {
  double x = 0;
  double y = 0;
};

/// False for NaN, infinity and numbers so large that an axis over them would overflow. Such values
/// are left out of drawings: a line has a gap there.
bool is_drawable(double value);

/// A round distance between ticks (1, 2 or 5 times a power of ten), so that about `wanted` of them
/// fit into `span`. span > 0, wanted > 0.
double tick_distance(double span, int wanted);

/// What an axis shows: whole ticks from bottom to top. They are powers of ten if is_log, else
/// values with zero among them.
struct Scale {
  double bottom = 0;
  double top = 1;
  double tick = 1;
  bool is_log = false;

  /// Where a drawable value (positive if is_log) stands: 0 at the bottom, 1 at the top.
  double share_of(double value) const;
};

/// The scale for drawable values from `least` to `greatest` with about `num_ticks` ticks; 0 to 1 if
/// both are 0.
Scale scale_of(double least, double greatest, int num_ticks);

/// The same by powers of ten, whole decades; 0 < least <= greatest.
Scale log_scale_of(double least, double greatest, int max_ticks);

/// At most about max_points of the points (rising x), such that a line through them looks alike:
/// of each stretch its lowest and highest point stay, and one that is not drawable if there is any;
/// the first and the last point stay. The points as they are if they are few enough.
std::vector<Point> thinned(const std::vector<Point>& points, size_t max_points);

/// Each y replaced by the mean over the `width` (odd) points around it, over those that there are
/// at the ends. Values that are not drawable count nowhere and stay as they are.
std::vector<Point> smoothed(const std::vector<Point>& points, size_t width);

}  // namespace lockstep::chart
