#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/yaml/config_reader.h"
#include "metrics/access/access.h"
#include "metrics/http/listen_address.h"

namespace lockstep::metrics {

constexpr int kMaxRankPages = 64;

/// Section `metrics` of the run file.
struct MetricsOptions {
  std::string listen = "127.0.0.1:9464";  ///< first local rank's address; "off": no server
  AccessOptions access;                   ///< keys web_config, token_file
  std::string scope = "auto";             ///< which ranks serve, and for whom; see scope_for()
  double turn_limit_s = 600;              ///< key max_turn_secs
  double step_limit_s = 600;              ///< key max_step_secs
  double linger_s = 20;                   ///< key linger_secs
  bool lingers_unseen = false;            ///< linger_secs is given: also if nobody has scraped yet
  std::string targets_dir;                ///< empty: none
  std::string textfile_dir;               ///< empty: none

  /// rank, node or run: the key, or for `auto` rank up to kMaxRankPages ranks, node above.
  std::string scope_for(int num_ranks) const;
  /// Where this rank shall listen (port + local rank); nothing if it serves no pages.
  std::optional<ListenAddress> listen_for(int rank, int local_rank, int num_ranks) const;
  /// Whether a rank serves the pages of others too: scopes `node` and `run`.
  bool gathers(int num_ranks) const;
};

/// Section `summary` of the run file.
struct SummaryOptions {
  int64_t save_summary_steps = 100;
  int64_t log_every = 1;
  bool tensorboard = true;
  bool records_always = true;    ///< key record_policy, of summary::scalar() and the like
  bool axis_is_samples = false;  ///< key x_axis: of the curves
  bool per_layer = false;        ///< sparsity of every pruned parameter too
  double flush_s = 30;           ///< key flush_secs
  int64_t histogram_steps = 0;   ///< of weights; 0: none
  double progress_s = 10;        ///< key progress_secs; 0: no progress lines

  /// Of the record policy.
  int64_t every_n_steps() const { return records_always ? 1 : save_summary_steps; }
  int64_t axis_units_per_step(int64_t global_batch_size) const {
    return axis_is_samples ? global_batch_size : 1;
  }
};

/// Readers of the two sections; they call in.done().
MetricsOptions read_metrics_options(ConfigReader in);
SummaryOptions read_summary_options(ConfigReader in);

}  // namespace lockstep::metrics
