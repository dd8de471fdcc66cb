#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/datasets/dataset.h"
#include "dist/communicator.h"
#include "model/model.h"
#include "train/evaluation/eval_options.h"
#include "train/evaluation/model_handler.h"
#include "train/loss/loss.h"

namespace lockstep::train {

struct EvalResult {
  double loss = 0;                 ///< mean over all samples that are not damaged
  std::optional<double> accuracy;  ///< Loss::num_correct over all; nothing for values
  int64_t num_samples = 0;
  std::vector<EvalValue> metrics = {};  ///< what eval.metrics asks for
  double seconds = 0;                   ///< rank: from the first sample to the sums of all ranks
};

/// The number of eval.loss or eval.accuracy; NaN where there is none.
double number_of(const EvalResult& result, const std::string& metric);

/// Evaluates the model (ModelHandler::eval_plan(), in float32) on the first num_eval_samples() of a
/// data set, each rank on its contiguous share; the same result on every rank. Collective.
/// `on_batch` is called after each batch and may be empty. Where the loss is the network's own,
/// metrics cost a second forward pass.
EvalResult evaluate(const ModelHandler& handler, const Loss& loss, const data::Dataset& dataset,
                    const EvalOptions& options, dist::Communicator& control,
                    const std::function<void()>& on_batch = {});

}  // namespace lockstep::train
