#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "train/hooks/hook.h"

namespace lockstep::daemon {

/// Tells Kubeflow's TrainJob, whose controller asks for it by three variables of the environment,
/// how far the training is: percent, seconds left, loss and what was evaluated, every `interval`
/// (which the controller asks to be 5 seconds or more) and at the end, from a thread of its own.
/// Null where KUBEFLOW_TRAINER_SERVER_URL, _CA_CERT or _TOKEN is not set. A report that fails is
/// warned of once and costs nothing else. `variable` is getenv.
std::unique_ptr<train::Hook> job_status_hook(
    int64_t total_steps, const std::function<const char*(const char*)>& variable,
    std::chrono::milliseconds interval = std::chrono::seconds(10));

}  // namespace lockstep::daemon
