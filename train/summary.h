#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/tensors/params.h"
#include "train/evaluator.h"

namespace lockstep::train {

/// Contents of <project_dir>/summary.json.
struct Summary {
  /// finished | stopped_early | stopped | ended | not_saved | not_exported | failed
  std::string exit_reason;
  int exit_code = 0;
  std::string error;  ///< message if failed
  int64_t steps = 0;
  double epochs = 0;
  int world_size = 1;
  int64_t skipped_steps = 0;         ///< of this process: skipped non-finite updates
  std::optional<double> train_loss;  ///< of the last update
  std::optional<EvalResult> eval;
  double sparsity = 0;
  int64_t num_prunable_weights = 0;
  double samples_per_second =
      0;  ///< without the first 10 steps, saves and evaluation; 0 without further steps
  std::string checkpoint;  ///< prefix of the last commit; empty: none
  std::optional<int64_t> resumed_from_step;
  std::string parameters_sha256;
  std::string evaluated_sha256;  ///< of the moving averages, if evaluated; else empty
  std::string metrics_address;   ///< empty: no server
};

/// Formats {"accuracy", "loss", "num_samples", "metrics", "kpis"} as JSON.
std::string eval_json(const EvalResult& eval);

/// Replaces the file atomically.
void write_summary(const std::filesystem::path& path, const Summary& summary);

/// Returns SHA-256 over the bytes of all parameters in name order: equal if and only if two runs'
/// weights are bit-identical.
std::string parameters_sha256(const ParamTable& params);

}  // namespace lockstep::train
