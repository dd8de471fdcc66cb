#include "metrics/metrics_options.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

// Readers of the sections metrics and summary.
namespace lockstep::metrics {
namespace {

constexpr std::string_view kOff = "off";

/// Checks the address. A reachable address needs some protection.
void check_listen(const MetricsOptions& options, ConfigReader* in) {
  if (options.listen == kOff) return;
  const std::optional<ListenAddress> address = parse_listen_address(options.listen);
  if (!address)
    return in->refuse("listen",
                      fmt::format("must be host:port (an IPv6 host in brackets) or off, not '{}'",
                                  options.listen));
  const bool is_protected =
      !options.access.web_config.empty() || !options.access.token_file.empty();
  if (is_reachable_by_others(address->host) && !is_protected)
    in->fault("listen",
              fmt::format("'{0}.listen': {1} is reachable from other hosts: name '{0}.token_file', "
                          "or '{0}.web_config' with users, or listen on 127.0.0.1",
                          in->path(), address->text()));
}

}  // namespace

std::string MetricsOptions::scope_for(int num_ranks) const {
  if (scope != "auto") return scope;
  // Up to kMaxRankPages ranks, Prometheus can scrape each one directly.
  return num_ranks > kMaxRankPages ? "node" : "rank";
}

std::optional<ListenAddress> MetricsOptions::listen_for(int rank, int local_rank,
                                                        int num_ranks) const {
  const std::string who = scope_for(num_ranks);
  const bool serves = who == "rank" || (who == "node" ? local_rank == 0 : rank == 0);
  if (listen == kOff || !serves) return std::nullopt;
  // Ranks of a host have consecutive ports.
  const std::optional<ListenAddress> first = parse_listen_address(listen);
  return first ? std::optional(address_of_local_rank(*first, local_rank)) : std::nullopt;
}

bool MetricsOptions::gathers(int num_ranks) const {
  return listen != kOff && scope_for(num_ranks) != "rank";
}

MetricsOptions read_metrics_options(ConfigReader in) {
  MetricsOptions options;
  in.read("listen", &options.listen,
          "host:port of the host's first rank; further ranks use the next ports, or free ones; "
          "off: no pages; other than loopback needs web_config or token_file");
  options.access = read_access_options(&in);
  check_listen(options, &in);
  in.read_choice("scope", &options.scope, {"auto", "rank", "node", "run"},
                 "ranks that serve /metrics: each (rank), the first of each host (node), rank 0 "
                 "(run); auto: rank up to 64 ranks, then node");
  in.read("max_turn_secs", &options.turn_limit_s, more_than(0),
          "seconds without progress (step, evaluation batch, wait for a save) before /livez fails");
  in.read("max_step_secs", &options.step_limit_s, more_than(0),
          "seconds without a training step before /healthz fails");
  in.read("linger_secs", &options.linger_s, between(0, 3600),
          "most seconds that a finished run serves pages, until each rank is scraped once more; "
          "default only for ranks scraped before");
  // The default must not delay runs that nothing scrapes.
  options.lingers_unseen = in.has("linger_secs");
  in.read("targets_dir", &options.targets_dir,
          "folder of target lists for Prometheus' file_sd, one file per run");
  in.read("textfile_dir", &options.textfile_dir,
          "folder of node exporter's textfile collector, for series of finished runs");
  in.done();
  return options;
}

SummaryOptions read_summary_options(ConfigReader in) {
  SummaryOptions options;
  std::string record_policy = "always", x_axis = "steps";
  in.read("save_summary_steps", &options.save_summary_steps, count_from(1),
          "steps between points of TensorBoard curves");
  in.read("log_every", &options.log_every, count_from(1), "steps between lines of train/steps.csv");
  in.read("tensorboard", &options.tensorboard, "write TensorBoard event files (rank 0)");
  in.read_choice("record_policy", &record_policy, {"always", "every_n_steps"},
                 "summaries of user code to write: all, or at multiples of save_summary_steps");
  options.records_always = record_policy == "always";
  in.read_choice("x_axis", &x_axis, {"steps", "samples"},
                 "axis of TensorBoard curves: updates, or samples over all ranks");
  options.axis_is_samples = x_axis == "samples";
  in.read("flush_secs", &options.flush_s, at_least(0),
          "longest delay of a point before it is written, in seconds; saves write all");
  in.read("histogram_steps", &options.histogram_steps, between(0, 1e9),
          "steps between weight histograms; 0: none");
  in.read("per_layer", &options.per_layer,
          "sparsity of every pruned parameter on the metrics page");
  in.read("progress_secs", &options.progress_s, at_least(0),
          "seconds between progress lines; 0: none");
  in.done();
  return options;
}

}  // namespace lockstep::metrics
