#pragma once

#include <optional>

#include "base/stop_request.h"
#include "daemon/config/program.h"
#include "daemon/config/run_config.h"
#include "daemon/control/control_api.h"
#include "dist/communicator.h"
#include "dist/process_info.h"
#include "metrics/exposition.h"
#include "metrics/http/http_server.h"
#include "metrics/rank_pages.h"
#include "metrics/training_metrics.h"

namespace lockstep::daemon {

/// Monitoring of this process: its series, its health and its pages. On rank 0 also the run's
/// targets.json and its control API.
class Telemetry {
 public:
  /// Collective. Throws Error (kConfig, kCannotCreate) on every rank if some rank cannot listen.
  /// `config`, `requests` and `health` must outlive it.
  Telemetry(const RunConfig& config, const dist::ProcessInfo& process,
            const OpenedLibraries& libraries, const std::vector<std::string>& modifiers,
            dist::Communicator& control, Requests& requests, metrics::Health& health);

  /// Rank 0 writes <project_dir>/targets.json, which is removed with this object. Collective.
  /// Throws Error on rank 0 alone if the file cannot be written.
  void publish_targets(const RunConfig& config, const dist::ProcessInfo& process,
                       dist::Communicator& control);

  /// Adds series of this rank's GPU. The allocator is read whenever a page is made.
  void show_gpu(const metrics::GpuFacts& gpu);
  /// Opens the Unix socket of control.listen on rank 0. The run's folder must exist. Collective.
  /// Throws Error(kCannotCreate) on every rank if that fails and the run file names the socket's
  /// path. Otherwise a failure is only a warning.
  void open_control_socket(const RunConfig& config, const dist::ProcessInfo& process,
                           dist::Communicator& control, Requests& requests);

  /// Marks the series as final. Call it after their last change.
  void note_final() { scrapes_before_end_ = exposition_.num_scrapes(); }
  /// Waits until this rank's series have been scraped since note_final(). Also returns after
  /// metrics.linger_secs or when a stop is requested. Does nothing without pages, or if nothing has
  /// scraped them and the run file does not ask for it.
  void linger(const metrics::MetricsOptions& options, const StopRequest& stop) const;

  /// Writes the run's series to metrics.textfile_dir if that is set. Never throws.
  void write_textfile(const RunConfig& config) const;

  /// Enclose the reading of a checkpoint. Meanwhile the run's state is `restoring`, in which the
  /// probes require no progress.
  void note_restoring();
  void note_restored();

  metrics::TrainingMetrics& metrics() { return metrics_; }
  metrics::Health& health() { return health_; }
  std::string page() const { return metrics_.page(); }
  /// Address of the pages, "127.0.0.1:9464"; empty if no page is served.
  std::string address() const { return server_ ? server_->address().text() : ""; }
  /// Address with its scheme: "https://127.0.0.1:9464".
  std::string origin() const { return server_ ? server_->origin() : ""; }

 private:
  void listen(const RunConfig& config, const dist::ProcessInfo& process, Requests& requests);
  void serve(const metrics::HttpOptions& options);
  void listen_at(const std::filesystem::path& socket);
  /// Serves rank 0's targets.json and live page for the scraped ranks.
  void show(const RunConfig& config, const std::vector<metrics::RankSource>& ranks);
  /// Writes the list to metrics.targets_dir too, if the run file names it.
  void share_targets(const RunConfig& config, const std::vector<metrics::Target>& targets);
  /// Prepares the pages of other ranks that this rank serves.
  void gather(int own_rank, const std::vector<metrics::RankSource>& ranks);
  std::string scheme() const { return server_ && server_->is_tls() ? "https" : "http"; }

  const std::string process_ = metrics::random_token().substr(0, 16);  ///< id of this process
  metrics::TrainingMetrics metrics_;
  metrics::Health& health_;
  metrics::Exposition exposition_;
  std::optional<ControlApi> control_;  ///< rank 0, if only this host or user can reach it
  std::optional<metrics::HttpMetrics> http_metrics_;
  std::optional<ControlLog> control_log_;  ///< for control calls through the pages
  std::optional<ControlLog> socket_log_;
  std::string token_;  ///< metrics.scope node and run: secret of the ranks' requests to each other
  std::optional<metrics::RankPages> others_;  ///< set if this rank serves others' pages
  std::optional<metrics::HttpServer> server_;
  std::optional<metrics::HttpServer> control_server_;  ///< at the Unix socket
  std::optional<metrics::TargetsFile> targets_;
  std::optional<metrics::TargetsFile> shared_targets_;  ///< in metrics.targets_dir
  int64_t scrapes_before_end_ = 0;
};

}  // namespace lockstep::daemon
