// Schedules as pure functions of the step: nothing to save, and the same on all ranks.
#include "optim/options/learning_rate_decay.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::optim {
namespace {

constexpr double kDefaultEpochsPerDecay = 2.0;

/// Computes in long double. The C library selects its double functions by processor (with or
/// without fused products), and their last bits differ. So ranks on different hosts would diverge.
/// Its long double functions have one version.
double portable_cos_pi(double x) {
  return static_cast<double>(std::cos(std::numbers::pi_v<long double> * x));
}
double portable_pow(double base, double exponent) {
  return static_cast<double>(std::pow(static_cast<long double>(base), exponent));
}

double steps_per_decay(double num_epochs, int64_t steps_per_epoch) {
  return std::max(1.0, std::round(num_epochs * static_cast<double>(steps_per_epoch)));
}

/// Returns the number of steps from the first rate of a polynomial to the last.
double polynomial_steps(const LearningRateDecay& decay, int64_t steps_per_epoch,
                        int64_t total_steps) {
  if (decay.decay_steps) return static_cast<double>(*decay.decay_steps);
  if (decay.num_epochs_per_decay)
    return steps_per_decay(*decay.num_epochs_per_decay, steps_per_epoch);
  return static_cast<double>(std::max<int64_t>(total_steps, 1));
}

double warmup_steps(const LearningRateDecay& decay, int64_t steps_per_epoch) {
  if (decay.warmup_epochs)
    return std::round(*decay.warmup_epochs * static_cast<double>(steps_per_epoch));
  return static_cast<double>(decay.warmup_steps.value_or(0));
}

double cosine_rate(const LearningRateDecay& decay, double learning_rate, double step,
                   int64_t steps_per_epoch, int64_t total_steps) {
  const double warmup = warmup_steps(decay, steps_per_epoch);
  // The first update has rate 0, as in the formula of the header.
  if (step < warmup) return learning_rate * step / warmup;
  const double all = std::max(1.0, decay.decay_steps ? static_cast<double>(*decay.decay_steps)
                                                     : static_cast<double>(total_steps) - warmup);
  const double done = std::min(step - warmup, all) / all;
  return (learning_rate - decay.end_learning_rate) * (1 + portable_cos_pi(done)) / 2 +
         decay.end_learning_rate;
}

void read_exponential(ConfigReader* in, LearningRateDecay* decay) {
  in->read("learning_rate_decay_factor", &decay->factor, more_than(0),
           "exponential: factor of the rate at each decay");
  double num_epochs = kDefaultEpochsPerDecay;
  in->read("num_epochs_per_decay", &num_epochs, more_than(0),
           "exponential: epochs from one decay to the next; polynomial: epochs over which the "
           "rate falls, default the whole run");
  decay->num_epochs_per_decay = num_epochs;
  in->read("staircase", &decay->staircase, "exponential: in steps, not at every update");
}

void read_polynomial(ConfigReader* in, LearningRateDecay* decay) {
  in->read("end_learning_rate", &decay->end_learning_rate, at_least(0),
           "polynomial: the rate that it falls to");
  in->read("decay_steps", &decay->decay_steps, count_from(1),
           "polynomial: updates over which the rate falls, whatever num_epochs_per_decay says");
  in->read("num_epochs_per_decay", &decay->num_epochs_per_decay, more_than(0),
           "polynomial: epochs over which the rate falls; default the whole run");
  in->read("power", &decay->power, more_than(0), "polynomial: 1 is a straight line");
}

void read_cosine(ConfigReader* in, LearningRateDecay* decay) {
  decay->end_learning_rate = 0;
  in->read("end_learning_rate", &decay->end_learning_rate, at_least(0),
           "cosine: the rate that it falls to");
  in->read("decay_steps", &decay->decay_steps, count_from(1),
           "cosine: updates over which the rate falls, after the warm-up; default the rest of the "
           "run");
  in->read("warmup_steps", &decay->warmup_steps, count_from(0),
           "cosine: updates in which the rate rises from 0 in a straight line");
  in->read("warmup_epochs", &decay->warmup_epochs, at_least(0),
           "cosine: the same in epochs, instead of warmup_steps");
  if (decay->warmup_steps && decay->warmup_epochs)
    in->fault("warmup_epochs", "warmup_steps and warmup_epochs say the same: give one of them");
}

}  // namespace

void read_learning_rate_decay(ConfigReader* in, LearningRateDecay* decay) {
  in->read_choice("learning_rate_decay_type", &decay->type,
                  {"fixed", "exponential", "polynomial", "cosine"},
                  "the optimizer's own schedule; must be fixed beside a recipe that writes the "
                  "learning rate");
  if (decay->type == "exponential") read_exponential(in, decay);
  if (decay->type == "polynomial") read_polynomial(in, decay);
  if (decay->type == "cosine") read_cosine(in, decay);
}

double decayed_rate(const LearningRateDecay& decay, double learning_rate, int64_t step,
                    int64_t steps_per_epoch, int64_t total_steps) {
  if (decay.type == "exponential") {
    const double exponent =
        static_cast<double>(step) /
        steps_per_decay(decay.num_epochs_per_decay.value_or(kDefaultEpochsPerDecay),
                        steps_per_epoch);
    return learning_rate *
           portable_pow(decay.factor, decay.staircase ? std::floor(exponent) : exponent);
  }
  if (decay.type == "polynomial") {
    const double all = polynomial_steps(decay, steps_per_epoch, total_steps);
    // After the last step of the decay the rate stays at its end value.
    const double left = 1 - std::min(static_cast<double>(step), all) / all;
    return (learning_rate - decay.end_learning_rate) * portable_pow(left, decay.power) +
           decay.end_learning_rate;
  }
  if (decay.type == "cosine")
    return cosine_rate(decay, learning_rate, static_cast<double>(step), steps_per_epoch,
                       total_steps);
  return learning_rate;
}

}  // namespace lockstep::optim
