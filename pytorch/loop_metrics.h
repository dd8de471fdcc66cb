#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/save/saver.h"
#include "metrics/exposition.h"
#include "metrics/http/http_server.h"
#include "metrics/training_metrics.h"
#include "optim/optimizer_options.h"
#include "pytorch/training_loop.h"
#include "train/recorder.h"

namespace lockstep::pytorch {

/// Address and facts of the pages of a loop. Equal on all ranks.
struct PageOptions {
  std::string listen;      ///< of a host's first rank, as metrics.listen of the run file
  std::string token_file;  ///< as metrics.token_file; empty: none
  std::string run_name, model, version, torch_version;
  int64_t num_parameters = 0;   ///< elements, of the whole module
  int64_t steps_per_epoch = 0;  ///< 0: unknown
};

/// Series and pages of a rank of a user's loop, with the names of lockstepd's (docs/metrics.md).
/// Loss, evaluations and the reading of data are the user's, so their series stay absent or 0.
/// Threads: one caller at a time; the server has its own.
class LoopMetrics {
 public:
  using Phase = double metrics::PhaseSeconds::*;

  /// Listens, and tells rank 0 where. Collective. Throws Error(kConfig, kCannotCreate) on every
  /// rank if one cannot listen. The loop must outlive this.
  LoopMetrics(TrainingLoop& loop, const PageOptions& options);

  /// Returns the address of the pages: "http://127.0.0.1:9464".
  std::string origin() const { return server_->origin(); }
  /// Ends the present phase of the step and begins another.
  void enter(Phase phase);
  /// Records the update that has ended, if the step has advanced. num_samples: of this rank. rates:
  /// of the update.
  void record(int64_t num_samples, const optim::StepRates& rates);
  void record_save(const checkpoint::SaveResult& save);
  void record_restore(const metrics::RestoreSample& restore);
  void finish() { recorder_.state(metrics::RunState::kFinished); }

 private:
  using Clock = std::chrono::steady_clock;

  void listen(const PageOptions& options);
  void share_addresses();

  TrainingLoop& loop_;
  const std::string process_;               ///< id of this process in the list of targets
  const std::vector<std::string> hosts_N_;  ///< of the ranks
  const int64_t steps_per_epoch_;
  const std::string run_name_;
  metrics::TrainingMetrics series_;
  metrics::Health health_;
  train::Recorder recorder_;
  metrics::Exposition exposition_;
  metrics::HttpMetrics answers_;

  Phase phase_ = &metrics::PhaseSeconds::data;
  Clock::time_point since_ = Clock::now();
  metrics::PhaseSeconds phases_;
  int64_t recorded_step_;
  int64_t num_mask_updates_ = 0;

  std::optional<metrics::HttpServer> server_;  ///< last: its thread reads the members above
};

}  // namespace lockstep::pytorch
