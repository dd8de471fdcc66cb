#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace lockstep::metrics {

/// One step of a run, for its live page.
struct LivePoint {
  int64_t step = 0;
  double time_s = 0;           ///< since 1970
  std::optional<double> loss;  ///< mean over ranks, if it was read
  std::optional<double> learning_rate;
  double sparsity = 0;      ///< pruned / prunable weights
  int64_t num_samples = 0;  ///< trained on by this rank since the process started
};

/// Curves of a run so far, in bounded memory. Keeps every step at first, every second one after
/// `max_points`, then every fourth, and so on. Always includes the newest step.
///
///   LiveHistory history(500);
///   history.add({.step = 1, .time_s = 1.7e9, .loss = 2.3});
///   draw(history.points());
///
/// Threads: one adds, any read. add() takes about 30 ns, with an occasional pass over the points.
class LiveHistory {
 public:
  explicit LiveHistory(size_t max_points = 500) : max_points_(max_points) {}

  /// Adds a step. Steps must increase.
  void add(const LivePoint& point);
  /// Returns at most max_points + 1 points in increasing order.
  std::vector<LivePoint> points() const;

 private:
  const size_t max_points_;
  mutable std::mutex mutex_;
  std::vector<LivePoint> kept_;
  LivePoint newest_;
  int64_t num_added_ = 0, stride_ = 1;
};

}  // namespace lockstep::metrics
