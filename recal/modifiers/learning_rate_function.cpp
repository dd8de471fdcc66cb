#include "recal/modifiers/learning_rate_function.h"

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {

std::unique_ptr<Modifier> LearningRateFunction::read(YamlFields* in, Place place) {
  LearningRateFunctionOptions options;
  read_window(in, &options.window);
  in->require("lr_func");
  in->read_choice("lr_func", &options.lr_func, {"linear", "cosine", "cyclic_linear"},
                  "the way from init_lr to final_lr");
  read_required(in, "init_lr", &options.init_lr, at_least(0), "rate at the start");
  read_required(in, "final_lr", &options.final_lr, at_least(0), "rate at the end");
  options.names_cycle =
      read_period(in, "cycle_epochs", "cyclic_linear: length of a cycle", &options.cycle, false);
  read_param_groups(in, &options.groups);
  read_minus_one(in, "update_frequency", kFunctionOfTheStep);
  read_logging(in);
  in->done();
  return std::make_unique<LearningRateFunction>(std::move(options), in->path(), std::move(place));
}

std::string LearningRateFunction::summary() const {
  return fmt::format("{} from {} to {}{}{}", options_.lr_func, options_.init_lr, options_.final_lr,
                     is_cyclic() ? ", again every " + options_.cycle.text() : "",
                     options_.groups.text());
}

void LearningRateFunction::contribute(TimelineBuilder* builder) const {
  const std::optional<StepRange> steps = builder->steps_of(options_.window);
  if (!steps || steps->first == steps->last) return;
  builder->claim_learning_rate(options_.groups, *steps);
  if (options_.names_cycle && !is_cyclic())
    builder->warn(fmt::format("cycle_epochs has no effect with lr_func {}", options_.lr_func));
  const Calendar& calendar = builder->calendar();
  RateFormula formula{.shape = options_.lr_func == "cosine" ? RateFormula::Shape::kCosine
                                                            : RateFormula::Shape::kLinear,
                      .first = options_.init_lr,
                      .last = options_.final_lr,
                      .begin = calendar.position_of(*options_.window.start),
                      .end = calendar.position_of(*options_.window.end),
                      .last_step = steps->last,
                      .steps_per_epoch = calendar.steps_per_epoch()};
  if (is_cyclic()) formula.cycles = rhythm_of(*options_.window.start, options_.cycle);
  builder->add_formula(steps->first, formula, options_.groups);
}

}  // namespace lockstep::recal
