#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "train/hooks/hook.h"

namespace lockstep::daemon {

/// Reports progress to Kubeflow's TrainJob: percent, seconds left, loss and evaluation results. The
/// controller requests these reports by three environment variables, KUBEFLOW_TRAINER_SERVER_URL,
/// _CA_CERT and _TOKEN. Returns null unless all three are set. Reports are sent every `interval`
/// and at the end, by a separate thread. The controller wants an interval of at least 5 seconds. A
/// failed report causes one warning and nothing else. `variable` is getenv.
std::unique_ptr<train::Hook> job_status_hook(
    int64_t total_steps, const std::function<const char*(const char*)>& variable,
    std::chrono::milliseconds interval = std::chrono::seconds(10));

}  // namespace lockstep::daemon
