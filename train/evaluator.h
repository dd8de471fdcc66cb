#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "data/datasets/dataset.h"
#include "dist/communicator.h"
#include "model/model.h"
#include "train/evaluation/eval_options.h"
#include "train/step/loss.h"

namespace lockstep::train {

struct EvalResult {
  double loss = 0;                 ///< mean over all samples that are not damaged
  std::optional<double> accuracy;  ///< Loss::num_correct over all; nothing for values
  int64_t num_samples = 0;
  std::vector<EvalValue> metrics = {};  ///< what eval.metrics asks for
};

/// Evaluates the model (Model::set_training(false), in float32) on a data set, each rank on its
/// contiguous share; the same result on every rank. Collective. `on_batch` is called after each
/// batch and may be empty. Where the loss is the network's own, metrics cost a second forward pass.
EvalResult evaluate(model::Model& model, const Loss& loss, const data::Dataset& dataset,
                    const EvalOptions& options, dist::Communicator& control,
                    const std::function<void()>& on_batch = {});

}  // namespace lockstep::train
