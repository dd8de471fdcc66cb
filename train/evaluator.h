#pragma once

#include <functional>

#include "data/loader.h"
#include "dist/communicator.h"
#include "train/evaluation/eval_options.h"
#include "train/evaluation/eval_result.h"
#include "train/evaluation/model_handler.h"
#include "train/hooks/hook.h"
#include "train/loss/loss.h"

namespace lockstep::train {

/// The step and the hooks of an evaluation.
struct EvalLoop {
  Hooks* hooks = nullptr;  ///< may be null
  int64_t step = 0;        ///< updates done
  /// True if this rank must stop; called every few batches. The ranks agree: if one must stop, all
  /// skip the rest after the same batch, and the evaluation is void. May be empty, on all ranks.
  std::function<bool()> must_stop = {};
  data::LoaderOptions loader = {};  ///< read-ahead threads; by default the caller reads
};

/// Evaluates the model (ModelHandler::eval_plan(), in float32) on the first num_eval_samples() of a
/// data set. Each rank evaluates a contiguous part; the result is the same on every rank.
/// Collective. If the network computes its own loss, metrics and hooks that read the outputs cost a
/// second forward pass.
EvalResult evaluate(const ModelHandler& handler, const Loss& loss, const data::Dataset& dataset,
                    const EvalOptions& options, dist::Communicator& control,
                    const EvalLoop& loop = {});

}  // namespace lockstep::train
