#include "recal/modifiers/modifiers.h"

#include <string>

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/timeline/timeline.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {
namespace {

struct LearningRateFunctionOptions {
  Window window;
  std::string lr_func;  ///< linear, cosine, cyclic_linear
  double init_lr = 0;
  double final_lr = 0;
  Period cycle{.epochs = Decimal(1)};  ///< cyclic_linear
  bool names_cycle = false;
  ParamGroups groups;
};

/// Moves the learning rate from init_lr to final_lr, with a new value at each step. cyclic_linear
/// repeats this. After the end final_lr holds; for cyclic_linear the last rate of the cycle.
class LearningRateFunction final : public Modifier {
 public:
  LearningRateFunction(LearningRateFunctionOptions options, std::string tag,
                       SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), options_(std::move(options)) {}

  Window window() const override { return options_.window; }
  void place_in(StageSpan* stage) override { stage->place(&options_.window); }
  std::string summary() const override;
  void compile(TimelineBuilder* builder) const override;

 private:
  bool is_cyclic() const { return options_.lr_func == "cyclic_linear"; }

  LearningRateFunctionOptions options_;
};

std::string LearningRateFunction::summary() const {
  return fmt::format("{} from {} to {}{}{}", options_.lr_func, options_.init_lr, options_.final_lr,
                     is_cyclic() ? ", again every " + options_.cycle.text() : "",
                     options_.groups.text());
}

void LearningRateFunction::compile(TimelineBuilder* builder) const {
  const std::optional<StepRange> steps = builder->steps_of(options_.window);
  // A window shorter than a step has no action; the timeline warns of it.
  if (!steps || steps->first == steps->end) return;
  builder->claim_learning_rate(options_.groups, *steps);
  if (options_.names_cycle && !is_cyclic())
    builder->warn(fmt::format("cycle_epochs has no effect with lr_func {}", options_.lr_func));
  const StepConverter& converter = builder->converter();
  // Positions are exact moments, not steps: the curve does not depend on rounding.
  LrSchedule formula{.shape = options_.lr_func == "cosine" ? LrSchedule::Shape::kCosine
                                                           : LrSchedule::Shape::kLinear,
                     .first = options_.init_lr,
                     .last = options_.final_lr,
                     .begin = converter.position_of(*options_.window.start),
                     .end = converter.position_of(*options_.window.end),
                     .last_step = steps->end,
                     .steps_per_epoch = converter.steps_per_epoch()};
  if (is_cyclic()) formula.cycles = recurrence_of(*options_.window.start, options_.cycle);
  builder->add_formula(steps->first, formula, options_.groups);
}

}  // namespace

Modifiers read_learning_rate_function(ConfigReader* in, const SourceLocation& location) {
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
  return one_modifier<LearningRateFunction>(std::move(options), *in, location);
}

}  // namespace lockstep::recal
