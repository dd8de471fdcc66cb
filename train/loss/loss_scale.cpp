#include "train/loss/loss_scale.h"

#include <algorithm>

namespace lockstep::train {

LossScaleOptions read_loss_scale_options(ConfigReader in) {
  LossScaleOptions options;
  in.read("initial_exponent", &options.initial_exponent,
          between(0, static_cast<double>(LossScale::kMaxExponent)),
          "precision fp16: losses are first multiplied by 2 to this power");
  in.read("growth_steps", &options.growth_steps, count_from(1),
          "precision fp16: finite updates in a row after which the scale doubles");
  in.done();
  return options;
}

bool LossScale::end_step(bool losses_finite, bool gradients_finite) {
  // A non-finite loss comes from the data or the weights; a smaller scale would not help.
  if (!dynamic_ || !losses_finite) return false;
  if (!gradients_finite) {
    finite_steps_ = 0;
    // At scale 1 the overflow has another cause: the step counts as non-finite.
    if (exponent_ == 0) return false;
    --exponent_;
    return true;
  }
  if (++finite_steps_ < options_.growth_steps) return false;
  finite_steps_ = 0;
  exponent_ = std::min(exponent_ + 1, kMaxExponent);
  return false;
}

StateList LossScale::state() {
  if (!dynamic_) return {};
  return {{"_lockstep/loss_scale/exponent", view_of(&exponent_), nullptr,
           static_cast<double>(options_.initial_exponent)},
          {"_lockstep/loss_scale/finite_steps", view_of(&finite_steps_), nullptr, 0.0}};
}

}  // namespace lockstep::train
