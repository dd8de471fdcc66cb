#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/live/live_history.h"

namespace prometheus {
struct MetricFamily;
}

namespace lockstep::metrics {

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
