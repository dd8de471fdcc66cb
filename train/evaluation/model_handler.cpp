#include "train/evaluation/model_handler.h"

namespace lockstep::train {

ModelHandler::EvalPlan::EvalPlan(const ModelHandler& handler)
    : model_(handler.model_), averaged_(handler.ema_), was_training_(model_.is_training()) {
  // was_training_ is read before; averaged_ has already replaced the weights.
  model_.set_training(false);
}

ModelHandler::EvalPlan::~EvalPlan() { model_.set_training(was_training_); }

}  // namespace lockstep::train
