#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/run/telemetry.h"
#include "daemon/run/training_context.h"
#include "dist/process_info.h"
#include "train/callback_hook.h"
#include "train/hook.h"
#include "train/recorder.h"

/// Hooks of a run, with its callbacks and the reports to a TrainJob.
namespace lockstep::daemon {

/// Reports progress to Kubeflow's TrainJob: percent, seconds left, loss and evaluation results. The
/// controller requests these reports by three environment variables, KUBEFLOW_TRAINER_SERVER_URL,
/// _CA_CERT and _TOKEN. Returns null unless all three are set. Reports are sent every `interval`
/// and at the end, by a separate thread. The controller wants an interval of at least 5 seconds. A
/// failed report causes one warning and nothing else. `variable` is getenv.
std::unique_ptr<train::Hook> job_status_hook(
    int64_t total_steps, const std::function<const char*(const char*)>& variable,
    std::chrono::milliseconds interval = std::chrono::seconds(10));

/// Returns the run file's callbacks for this mode; null if there are none. Throws Error(kConfig) if
/// they do not fit together. `show_kpi`: see train::make_callback_hook().
std::unique_ptr<train::Hook> callback_hook(
    coord::Mode mode, const TrainingContext& context,
    const std::function<void(const std::string& name, double value)>& show_kpi = {});

/// Hooks of a run, in this order: the recorder, the estimator's, the run file's callbacks, the
/// profiler, the reports to a TrainJob. All arguments must outlive it.
class RunHooks {
 public:
  /// Throws Error(kConfig) if callbacks do not fit together.
  RunHooks(const TrainingContext& context, Telemetry& telemetry, const dist::ProcessInfo& process);

  /// Sets the recorder. Call it before any hook is called.
  void set_recorder(train::Recorder& recorder);
  train::Hooks& training() { return training_; }
  train::Hooks& evaluation() { return evaluation_; }

 private:
  void add(std::unique_ptr<train::Hook> hook, train::Hooks* hooks);

  summary::DefaultWriterOptions summaries_of(coord::Mode mode);

  const TrainingContext& context_;
  train::Recorder* recorder_ = nullptr;
  train::Hooks training_, evaluation_;
  std::vector<std::unique_ptr<train::Hook>> owned_;
};

}  // namespace lockstep::daemon
