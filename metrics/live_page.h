#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace prometheus {
struct MetricFamily;
}

/// Live page of a run: HTML, data, and the curves so far.
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

/// Rank whose page a reader may request too.
struct LiveRank {
  std::string rank, node;
  std::string address;  ///< "n1:9465"
  std::string query;    ///< "?rank=3" if the process at `address` serves this rank's page
};

/// Facts above the curves.
struct LiveFacts {
  std::string run_name, model, version, node;
  int rank = 0;
  int world_size = 1;
};

/// Returns the page at `/`: HTML with its own style and script, which requests live.json every two
/// seconds. It needs no other resources and changes nothing.
std::string_view live_page();

/// Returns the page's data as JSON:
///
///   {"run": "digits", "model": "digits_net", "version": "0.1.0", "rank": 0, "node": "n1",
///    "world_size": 2, "time_s": 1700000000.5,
///    "series": {"lockstep_step": 120, "lockstep_learning_rate{weights}": 0.1, ...},
///    "history": {"step": [1, 2], "time_s": [...], "loss": [2.3, null], "learning_rate": [...],
///                "sparsity": [...], "num_samples": [...]},
///    "ranks": [{"rank": "0", "node": "n1", "address": "n1:9464", "query": ""}]}
///
/// `series` contains the `families` that the page uses, each under its name and label values; a
/// histogram as its _sum and _count. A value that is not finite is null.
std::string live_json(const LiveFacts& facts, const std::vector<prometheus::MetricFamily>& families,
                      const std::vector<LivePoint>& history, const std::vector<LiveRank>& ranks,
                      double time_s);

}  // namespace lockstep::metrics
