#pragma once

#include "daemon/config/run_config.h"
#include "daemon/plan/scale_model.h"

namespace lockstep::daemon {

/// What a run file's network costs here: real steps of it, in this process, on CPUs.
struct MeasuredJob {
  ScaleJob dense;
  double final_kept_share = 1;  ///< of the gradients, at the run's last step
  double final_sparsity = 0;    ///< of the prunable weights
};

/// Trains a few steps at the largest and the smallest batch that a rank has on up to `max_ranks`.
/// Saves nothing. Throws what the run file's faults are.
MeasuredJob measure_job(const RunConfig& config, int max_ranks);

/// Bytes a second that are read and written while a large tensor is copied by all threads.
double measure_memory_bytes_s();
/// Bytes a second of a synced file in `folder`, or where it will be made; it is gone afterwards.
/// Throws Error(kCannotCreate).
double measure_disk_bytes_s(const std::string& folder);

}  // namespace lockstep::daemon
