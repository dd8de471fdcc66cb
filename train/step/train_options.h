#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/tensors/name_scopes.h"
#include "base/yaml/config_reader.h"
#include "train/step/loss.h"

/// Section `train` of the run file, and the options of the profiler.
namespace lockstep::train {

/// Section `train` of the run file.
struct TrainOptions {
  std::string loss = "auto";  ///< train/step/loss.h
  LossOptions loss_options;
  std::string precision = "fp32";      ///< of forward and backward: fp32 | bf16 | fp16
  LossScaleOptions loss_scale;         ///< fp16
  std::string batch_norm = "average";  ///< train/step/module_buffers.h
  std::string cuda_graphs = "auto";    ///< auto | on | off: train/step/recorded_pass.h
  int64_t replicas_to_aggregate =
      1;  ///< micro-batches of one update on each rank (gradient accumulation)
  NameScopes trainable_scopes;        ///< variables that are trained; none: all
  std::optional<int64_t> max_steps;   ///< caps the recipe too
  std::optional<int64_t> max_epochs;  ///< caps the recipe too
  int64_t max_nonfinite_steps =
      10;  ///< skipped steps in a row after which all ranks stop (exit 80)
};

TrainOptions read_train_options(ConfigReader in);

/// Selects the steps to trace: `trainer.run_config.profile_hook_config` of the run file, with the
/// names of TensorFlow's ProfilerHook.
struct ProfileOptions {
  std::optional<int64_t> save_steps;  ///< each step whose number is a multiple
  std::optional<double> save_secs;    ///< alternatively: the next step after this time, by rank 0's
                                      ///< clock
  bool show_memory = false;           ///< include allocations
  bool show_dataflow = true;          ///< include arrows from forward to backward operators
  std::vector<int64_t> ranks;         ///< traced ranks; empty: all
};

/// Returns nullopt if the section is missing.
std::optional<ProfileOptions> read_profile_options(ConfigReader* run_config);

}  // namespace lockstep::train
