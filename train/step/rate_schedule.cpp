#include "train/step/rate_schedule.h"

namespace lockstep::train {

optim::StepRates RateSchedule::at(int64_t step) const {
  optim::StepRates rates = optim::initial_rates(options_);
  const double own_rate = optim::decayed_rate(options_.decay, options_.learning_rate, step,
                                              timeline_.steps_per_epoch(), total_steps_);
  for (int group = 0; group < kNumParamGroups; ++group) {
    optim::GroupRates& rate = rates[static_cast<size_t>(group)];
    rate.learning_rate =
        // A recipe that sets the learning rate replaces the optimizer's schedule completely.
        timeline_.sets_learning_rate() ? timeline_.learning_rate_at(step, group) : own_rate;
    if (const std::optional<double> decay = timeline_.weight_decay_at(step, group))
      rate.weight_decay = *decay;
  }
  return rates;
}

}  // namespace lockstep::train
