#include "recal/modifiers/modifiers.h"

#include <optional>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "recal/modifiers/lr_scheduler_options.h"
#include "recal/modifiers/modifier_fields.h"
#include "recal/timeline/timeline.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {
// Three ways of adding actions: a formula for cosine cycles, one action per period for gamma, and
// one per milestone. Milestones are absolute epochs, as in PyTorch's MultiStepLR.
namespace {

struct LearningRateOptions {
  Window window;
  LrScheduler rate;
  std::optional<double> init_lr;  ///< nullopt: the rate in force at the start
  bool end_is_default = false;    ///< the recipe gives no end
  ParamGroups groups;
};

/// Multiplies the learning rate by gamma at certain epochs, beginning with init_lr, or repeats a
/// cosine decay. Periods count from the start. Milestones are absolute epochs. After the end the
/// last rate stays.
class LearningRate final : public Modifier {
 public:
  LearningRate(LearningRateOptions options, std::string tag, SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), options_(std::move(options)) {}

  Window window() const override { return options_.window; }
  void place_in(StageSpan* stage) override;
  std::string summary() const override;
  void compile(TimelineBuilder* builder) const override;

 private:
  void add(TimelineBuilder* builder, StepRange steps, double base, const ParamGroups& groups) const;
  void add_cycles(TimelineBuilder* builder, StepRange steps, double base,
                  const ParamGroups& groups) const;
  void add_periods(TimelineBuilder* builder, StepRange steps, double base,
                   const ParamGroups& groups) const;
  void check_milestones(TimelineBuilder* builder, StepRange steps) const;
  void add_milestones(TimelineBuilder* builder, StepRange steps, double base,
                      const ParamGroups& groups) const;

  LearningRateOptions options_;
};

/// Computes base^exponent by multiplications only: the bits of std::pow depend on the C library.
double power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1) result *= base;
  return result;
}

void LearningRate::place_in(StageSpan* stage) {
  stage->place(&options_.window);
  for (Decimal& milestone : options_.rate.milestones) stage->place(&milestone);
}

std::string LearningRate::summary() const {
  const std::string first =
      options_.init_lr ? fmt::format("from {}", *options_.init_lr) : "from the rate in force";
  return fmt::format("{} {}, {}{}", options_.rate.name, first, options_.rate.text(),
                     options_.groups.text());
}

void LearningRate::compile(TimelineBuilder* builder) const {
  if (options_.end_is_default) builder->note_default("end_epoch", "-1, the run's end");
  const std::optional<StepRange> steps = builder->steps_of(options_.window);
  if (!steps || steps->first == steps->end)
    return;  // shorter than a step: the timeline warns that it has no effect
  builder->claim_learning_rate(options_.groups, *steps);
  if (options_.rate.is_multi_step()) check_milestones(builder, *steps);
  if (options_.init_lr) return add(builder, *steps, *options_.init_lr, options_.groups);
  // Without init_lr the rate at the start is the result of other modifiers, which may be compiled
  // later. defer() runs after all of them, in the order of start steps.
  builder->defer(steps->first, [this, builder, range = *steps] {
    for (const auto& [groups, rate] : builder->rates_in_force(range.first, options_.groups))
      add(builder, range, rate, groups);
  });
}

void LearningRate::add(TimelineBuilder* builder, StepRange steps, double base,
                       const ParamGroups& groups) const {
  if (options_.rate.restarts()) return add_cycles(builder, steps, base, groups);
  if (options_.rate.is_multi_step()) return add_milestones(builder, steps, base, groups);
  add_periods(builder, steps, base, groups);
}

void LearningRate::add_cycles(TimelineBuilder* builder, StepRange steps, double base,
                              const ParamGroups& groups) const {
  const StepConverter& converter = builder->converter();
  builder->add_formula(steps.first,
                       {.shape = LrSchedule::Shape::kCosine,
                        .first = base,
                        .last = options_.rate.lr_min,
                        .begin = converter.position_of(*options_.window.start),
                        .end = converter.position_of(*options_.window.end),
                        .last_step = steps.end,
                        .cycles = recurrence_of(*options_.window.start, options_.rate.period),
                        .steps_per_epoch = converter.steps_per_epoch()},
                       groups);
}

void LearningRate::add_periods(TimelineBuilder* builder, StepRange steps, double base,
                               const ParamGroups& groups) const {
  for (const auto& [k, step] : builder->updates(options_.window, options_.rate.period, steps.end))
    builder->add_for_groups(step, ActionKind::kSetLearningRate,
                            base * power(options_.rate.gamma, k), groups);
}

void LearningRate::check_milestones(TimelineBuilder* builder, StepRange steps) const {
  for (const Decimal& epoch : options_.rate.milestones) {
    const int64_t step = builder->step_of(TrainTime::at_epoch(epoch));
    if (step < steps.first || step > steps.end)
      builder->fault(
          fmt::format("{} has a milestone at epoch {} (step {}), outside its steps {} "
                      "to {}",
                      tag(), epoch.text(), step, steps.first, steps.end));
  }
}

void LearningRate::add_milestones(TimelineBuilder* builder, StepRange steps, double base,
                                  const ParamGroups& groups) const {
  builder->add_for_groups(steps.first, ActionKind::kSetLearningRate, base, groups);
  int64_t k = 0;
  for (const Decimal& epoch : options_.rate.milestones) {
    const int64_t step = builder->step_of(TrainTime::at_epoch(epoch));
    const double rate = base * power(options_.rate.gamma, ++k);
    // A milestone at the end has no step left. Its power of gamma still counts for later ones.
    if (step < steps.end) builder->add_for_groups(step, ActionKind::kSetLearningRate, rate, groups);
  }
}

}  // namespace

Modifiers read_learning_rate(ConfigReader* in, const SourceLocation& location) {
  LearningRateOptions options;
  options.end_is_default = lacks_moment(*in, "end");
  const bool window_is_good = read_window(in, &options.window, Bounds::kEndByDefault);
  read_rate_class(in, window_is_good ? &options.window : nullptr, &options.rate);
  in->read("init_lr", &options.init_lr, at_least(0),
           "rate at the start; none: the rate in force there");
  read_param_groups(in, &options.groups);
  read_minus_one(in, "update_frequency", kFunctionOfTheStep);
  read_logging(in);
  in->done();
  return one_modifier<LearningRate>(std::move(options), *in, location);
}

}  // namespace lockstep::recal
