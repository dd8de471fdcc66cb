#include "recal/set_learning_rate.h"

#include <fmt/format.h>

#include "recal/timeline_builder.h"

namespace lockstep::recal {

std::unique_ptr<Modifier> SetLearningRate::read(YamlFields* in, Place place) {
  SetLearningRateOptions options;
  read_epoch(in, "start_epoch", &options.start_epoch, "epoch at which the rate is set");
  read_required(in, "learning_rate", &options.learning_rate, more_than(0), "the new learning rate");
  in->done();
  return std::make_unique<SetLearningRate>(options, std::move(place));
}

std::string SetLearningRate::summary() const {
  return fmt::format("learning rate {}", options_.learning_rate);
}

void SetLearningRate::contribute(TimelineBuilder* builder) const {
  const int64_t step = builder->step_of(options_.start_epoch);
  builder->claim_learning_rate(step, step + 1);
  builder->add(step, ActionKind::kSetLearningRate, options_.learning_rate);
}

}  // namespace lockstep::recal
