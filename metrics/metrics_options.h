#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/yaml/config_reader.h"
#include "metrics/http/access.h"
#include "metrics/http/listen_address.h"

namespace lockstep::metrics {

constexpr int kMaxRankPages = 64;

/// Section `metrics` of the run file.
struct MetricsOptions {
  std::string listen = "127.0.0.1:9464";  ///< first local rank's address; "off": no server
  AccessOptions access;                   ///< keys web_config, token_file
  std::string scope = "auto";             ///< which ranks serve pages, and of whom; see scope_for()
  double turn_limit_s = 600;              ///< key max_turn_secs
  double step_limit_s = 600;              ///< key max_step_secs
  double linger_s = 20;                   ///< key linger_secs
  bool lingers_unseen = false;  ///< linger_secs is given: wait even if nothing has scraped yet
  std::string targets_dir;      ///< empty: none
  std::string textfile_dir;     ///< empty: none

  /// Returns rank, node or run. For `auto`: rank for up to kMaxRankPages ranks, node for more.
  std::string scope_for(int num_ranks) const;
  /// Returns the address of this rank's pages (port + local rank); nullopt if it serves none.
  std::optional<ListenAddress> listen_for(int rank, int local_rank, int num_ranks) const;
  /// True if a rank also serves the pages of others: scopes `node` and `run`.
  bool gathers(int num_ranks) const;
};

/// Section `summary` of the run file.
struct SummaryOptions {
  int64_t save_summary_steps = 100;
  int64_t log_every = 1;
  bool tensorboard = true;
  bool records_always = true;    ///< key record_policy, for summary::scalar() and the like
  bool axis_is_samples = false;  ///< key x_axis, for the curves
  bool per_layer = false;        ///< also the sparsity of every pruned parameter
  double flush_s = 30;           ///< key flush_secs
  int64_t histogram_steps = 0;   ///< steps between histograms of weights; 0: none
  double progress_s = 10;        ///< key progress_secs; 0: no progress lines

  /// Returns the interval of the record policy in steps.
  int64_t every_n_steps() const { return records_always ? 1 : save_summary_steps; }
  int64_t axis_units_per_step(int64_t global_batch_size) const {
    return axis_is_samples ? global_batch_size : 1;
  }
};

/// Read the two sections and call in.done().
MetricsOptions read_metrics_options(ConfigReader in);
SummaryOptions read_summary_options(ConfigReader in);

}  // namespace lockstep::metrics
