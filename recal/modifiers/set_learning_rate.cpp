#include "recal/modifiers/modifiers.h"

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/timeline/timeline.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {
namespace {

struct SetLearningRateOptions {
  std::optional<TrainTime> start;
  double learning_rate = 0;
  bool start_is_default = false;  ///< the recipe gives no start
  ParamGroups groups;
};

/// Sets the learning rate once, at its start. It stays until another modifier changes it.
class SetLearningRate final : public Modifier {
 public:
  SetLearningRate(SetLearningRateOptions options, std::string tag, SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), options_(options) {}

  Window window() const override { return {options_.start, std::nullopt}; }
  void place_in(StageSpan* stage) override { stage->place(&options_.start); }
  std::string summary() const override;
  void compile(TimelineBuilder* builder) const override;

 private:
  SetLearningRateOptions options_;
};

std::string SetLearningRate::summary() const {
  return fmt::format("learning rate {}{}", options_.learning_rate, options_.groups.text());
}

void SetLearningRate::compile(TimelineBuilder* builder) const {
  if (options_.start_is_default) builder->note_default("start_epoch", "-1, the run's start");
  const int64_t step = builder->step_of(*options_.start);
  // A claim of one step: another modifier may take over at the next one.
  builder->claim_learning_rate(options_.groups, {step, step + 1});
  builder->add_for_groups(step, ActionKind::kSetLearningRate, options_.learning_rate,
                          options_.groups);
}

}  // namespace

Modifiers read_set_learning_rate(ConfigReader* in, const SourceLocation& location) {
  SetLearningRateOptions options;
  options.start_is_default = lacks_moment(*in, "start");
  read_moment(in,
              {.name = "start",
               .help = "moment at which the rate is set",
               .minus_one = MinusOne::kRunStart,
               .is_minus_one_by_default = true},
              &options.start);
  read_required(in, "learning_rate", &options.learning_rate, at_least(0), "the new learning rate");
  read_param_groups(in, &options.groups);
  read_logging(in);
  read_no_end(in, kActsOnce);
  in->done();
  return one_modifier<SetLearningRate>(options, *in, location);
}

}  // namespace lockstep::recal
