#include "optim/learning_rate_decay.h"

#include <algorithm>
#include <cmath>

namespace lockstep::optim {

void read_learning_rate_decay(YamlFields* in, LearningRateDecay* decay) {
  in->read_choice("learning_rate_decay_type", &decay->type, {"fixed", "exponential", "polynomial"},
                  "the optimizer's own schedule; must be fixed beside a recipe that writes the "
                  "learning rate");
  if (decay->type == "exponential") {
    in->read("learning_rate_decay_factor", &decay->factor, more_than(0),
             "exponential: factor of the rate at each decay");
    in->read("num_epochs_per_decay", &decay->num_epochs_per_decay, more_than(0),
             "exponential: epochs from one decay to the next");
    in->read("staircase", &decay->staircase, "exponential: in steps, not at every update");
  }
  if (decay->type == "polynomial") {
    in->read("end_learning_rate", &decay->end_learning_rate, at_least(0),
             "polynomial: rate at the end of the run");
    in->read("power", &decay->power, more_than(0), "polynomial: 1 is a straight line");
  }
}

double decayed_rate(const LearningRateDecay& decay, double learning_rate, int64_t step,
                    int64_t steps_per_epoch, int64_t total_steps) {
  if (decay.type == "exponential") {
    const double decay_steps = std::max(
        1.0, std::round(decay.num_epochs_per_decay * static_cast<double>(steps_per_epoch)));
    const double exponent = static_cast<double>(step) / decay_steps;
    return learning_rate *
           std::pow(decay.factor, decay.staircase ? std::floor(exponent) : exponent);
  }
  if (decay.type == "polynomial") {
    const auto all = static_cast<double>(std::max<int64_t>(total_steps, 1));
    const double left = 1 - std::min(static_cast<double>(step), all) / all;
    return (learning_rate - decay.end_learning_rate) * std::pow(left, decay.power) +
           decay.end_learning_rate;
  }
  return learning_rate;
}

}  // namespace lockstep::optim
