#pragma once

#include <ATen/core/grad_mode.h>

#include "model/model.h"
#include "optim/ema.h"

namespace lockstep::train {

/// Switches a model from training to evaluation and back. Only this class decides which weights are
/// evaluated. (For inference, daemon/exports/ builds another model from a checkpoint.)
class ModelHandler {
 public:
  /// Both must outlive the handler. `ema`: evaluate these averages of the weights; null, or an EMA
  /// that is off: the weights themselves.
  explicit ModelHandler(model::Model& model, optim::Ema* ema = nullptr)
      : model_(model), ema_(ema) {}

  /// Evaluation mode for its lifetime. The model's forward pass is that of evaluation
  /// (Model::set_training(false)), no gradients are recorded on this thread, and the weights are
  /// those to be evaluated. Plans must not overlap.
  class EvalPlan {
   public:
    explicit EvalPlan(const ModelHandler& handler);
    ~EvalPlan();
    EvalPlan(const EvalPlan&) = delete;
    EvalPlan& operator=(const EvalPlan&) = delete;

   private:
    model::Model& model_;
    const optim::EmaInModel averaged_;
    const at::NoGradGuard no_grad_;
    const bool was_training_;
  };
  [[nodiscard]] EvalPlan eval_plan() const { return EvalPlan(*this); }
  model::Model& model() const { return model_; }

 private:
  model::Model& model_;
  optim::Ema* ema_;
};

}  // namespace lockstep::train
