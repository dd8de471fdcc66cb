#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/evaluator.h"

namespace lockstep::daemon {

/// What the run that made a save measured at that very step; nothing where it is not known.
struct RunFigures {
  std::optional<double> train_loss;  ///< of the update that led to the save
  std::optional<train::EvalResult> eval;
};

/// Looks beside the folder of the save, where a run leaves its records: summary.json counts if its
/// step and its parameters are those of the save, train/steps.csv by its line of that step. A
/// record that cannot be read is passed over with a warning. `parameters_sha256` empty: unknown,
/// and then no summary counts.
RunFigures find_run_figures(const std::string& save_prefix, int64_t step,
                            const std::string& parameters_sha256);

}  // namespace lockstep::daemon
