#pragma once

#include <optional>

#include "daemon/config/run_config.h"
#include "daemon/control/control_api.h"
#include "daemon/control/control_log.h"
#include "dist/communicator.h"
#include "dist/process_info.h"
#include "metrics/discovery/targets_file.h"
#include "metrics/exposition.h"
#include "metrics/gather/rank_pages.h"
#include "metrics/gpu_metrics.h"
#include "metrics/health.h"
#include "metrics/http/http_server.h"
#include "metrics/http_metrics.h"
#include "metrics/training_metrics.h"
#include "train/step/stop_request.h"

namespace lockstep::daemon {

struct LibraryVersions {
  std::string mpi;   ///< empty: not used
  std::string nccl;  ///< empty: not used
};

/// What this process shows of itself: its series, its health, its pages and, on rank 0, the run's
/// targets.json and its control API.
class Telemetry {
 public:
  /// Collective. Throws Error (kConfig, kCannotCreate) on every rank if some rank cannot listen.
  /// `config`, `requests` and `health` must outlive it.
  Telemetry(const RunConfig& config, const dist::ProcessInfo& process,
            const LibraryVersions& libraries, const std::vector<std::string>& modifiers,
            dist::Communicator& control, Requests& requests, metrics::Health& health);

  /// Collective. Rank 0 writes <project_dir>/targets.json, which lives as long as this object.
  /// Throws Error on rank 0 alone if it cannot.
  void publish_targets(const RunConfig& config, const dist::ProcessInfo& process,
                       dist::Communicator& control);

  /// This rank's GPU, and what its allocator tells whenever a page is made.
  void show_gpu(const metrics::GpuFacts& gpu);
  /// Collective. Rank 0 listens at the Unix socket of control.listen from now on; the run's folder
  /// must be there. Throws Error(kCannotCreate) on every rank if it cannot and the run file names
  /// the socket's place; else that is a warning.
  void open_control_socket(const RunConfig& config, int world_size, dist::Communicator& control,
                           Requests& requests);

  /// No series will change any more.
  void note_final() { scrapes_before_end_ = exposition_.num_scrapes(); }
  /// Waits until this rank's series have been scraped since note_final(), metrics.linger_secs have
  /// passed or somebody asks the run to stop. Nothing where no pages are served, or where nobody
  /// has scraped them and the run file does not ask for it.
  void linger(const metrics::MetricsOptions& options, const train::StopRequest& stop) const;

  /// Writes the run's series into metrics.textfile_dir, if that is set. Never throws.
  void write_textfile(const RunConfig& config) const;

  /// Around the reading of a save: the run's state is restoring meanwhile, and the probes wait.
  void note_restoring();
  void note_restored();

  metrics::TrainingMetrics& metrics() { return metrics_; }
  metrics::Health& health() { return health_; }
  std::string page() const { return metrics_.page(); }
  /// "127.0.0.1:9464"; empty where no page is served.
  std::string address() const { return server_ ? server_->address().text() : ""; }
  /// The same with what stands before it: "https://127.0.0.1:9464".
  std::string origin() const { return server_ ? server_->origin() : ""; }

 private:
  void listen(const RunConfig& config, const dist::ProcessInfo& process, Requests& requests);
  void serve(const metrics::HttpOptions& options);
  void listen_at(const std::filesystem::path& socket);
  /// Rank 0's targets.json and live page, of those who are scraped.
  void show(const RunConfig& config, const std::vector<metrics::RankSource>& ranks);
  /// The list in metrics.targets_dir too, if the run file names it.
  void share_targets(const RunConfig& config, const std::vector<metrics::Target>& targets);
  /// The pages of those that this rank shows.
  void gather(int own_rank, const std::vector<metrics::RankSource>& ranks);
  std::string scheme() const { return server_ && server_->is_tls() ? "https" : "http"; }

  const std::string process_ = metrics::random_token().substr(0, 16);  ///< id of this process
  metrics::TrainingMetrics metrics_;
  metrics::Health& health_;
  metrics::Exposition exposition_;
  std::optional<ControlApi> control_;  ///< rank 0, where only this host or user can reach it
  std::optional<metrics::HttpMetrics> http_metrics_;
  std::optional<ControlLog> control_log_;  ///< of control calls at the pages
  std::optional<ControlLog> socket_log_;
  std::string token_;  ///< with metrics.scope node and run: opens what ranks show each other
  std::optional<metrics::RankPages> others_;  ///< where this rank shows others' pages
  std::optional<metrics::HttpServer> server_;
  std::optional<metrics::HttpServer> control_server_;  ///< of a Unix socket
  std::optional<metrics::TargetsFile> targets_;
  std::optional<metrics::TargetsFile> shared_targets_;  ///< in metrics.targets_dir
  int64_t scrapes_before_end_ = 0;
};

}  // namespace lockstep::daemon
