#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/evaluator.h"

namespace lockstep::daemon {

/// Measurements of a checkpoint's run at the checkpoint's own step; nullopt if unknown.
struct RunFigures {
  std::optional<double> train_loss;  ///< of the update that led to the checkpoint
  std::optional<train::EvalResult> eval;
};

/// Reads the run's files next to the folder of the checkpoint. summary.json is used if its step and
/// parameters are those of the checkpoint. train/steps.csv is used for its line of that step. An
/// unreadable file is skipped with a warning. An empty `parameters_sha256` means unknown; then no
/// summary is used.
RunFigures find_run_figures(const std::string& save_prefix, int64_t step,
                            const std::string& parameters_sha256);

}  // namespace lockstep::daemon
