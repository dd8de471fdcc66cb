#include "train/evaluation/model_handler.h"

namespace lockstep::train {

ModelHandler::EvalPlan::EvalPlan(const ModelHandler& handler)
    : model_(handler.model_), averaged_(handler.ema_), was_training_(model_.is_training()) {
  model_.set_training(false);
}

ModelHandler::EvalPlan::~EvalPlan() { model_.set_training(was_training_); }

}  // namespace lockstep::train
