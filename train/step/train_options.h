#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/tensors/name_scopes.h"
#include "base/yaml/config_reader.h"
#include "train/loss/loss.h"
#include "train/loss/loss_scale.h"

namespace lockstep::train {

/// Section `train` of the run file.
struct TrainOptions {
  std::string loss = "auto";  ///< train/loss/loss.h
  LossOptions loss_options;
  std::string precision = "fp32";      ///< of forward and backward: fp32 | bf16 | fp16
  LossScaleOptions loss_scale;         ///< fp16
  std::string batch_norm = "average";  ///< train/gradients/batch_statistics.h
  std::string cuda_graphs = "auto";    ///< auto | on | off: train/gradients/recorded_pass.h
  int64_t replicas_to_aggregate =
      1;  ///< micro-batches of one update on each rank (gradient accumulation)
  NameScopes trainable_scopes;        ///< variables that are trained; none: all
  std::optional<int64_t> max_steps;   ///< caps the recipe too
  std::optional<int64_t> max_epochs;  ///< caps the recipe too
  int64_t max_nonfinite_steps =
      10;  ///< skipped steps in a row after which all ranks stop (exit 80)
};

TrainOptions read_train_options(ConfigReader in);

}  // namespace lockstep::train
