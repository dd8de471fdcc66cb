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

/// The hooks of an evaluation, and which it is.
struct EvalLoop {
  Hooks* hooks = nullptr;  ///< may be null
  int64_t step = 0;        ///< updates done
  /// Whether this rank is to stop, asked every few batches. The ranks agree: where one is, all
  /// leave out the rest behind the same batch, and the evaluation is void. May be empty, on all
  /// ranks.
  std::function<bool()> must_stop = {};
  data::LoaderOptions loader = {};  ///< threads that read ahead; by default the caller reads
};

/// Evaluates the model (ModelHandler::eval_plan(), in float32) on the first num_eval_samples() of a
/// data set, each rank on its contiguous share; the same result on every rank. Collective. Where
/// the loss is the network's own, metrics and hooks that read the outputs cost a second forward
/// pass.
EvalResult evaluate(const ModelHandler& handler, const Loss& loss, const data::Dataset& dataset,
                    const EvalOptions& options, dist::Communicator& control,
                    const EvalLoop& loop = {});

}  // namespace lockstep::train
