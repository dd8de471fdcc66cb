#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/yaml/config_reader.h"
#include "recal/schedule/modifier_fields.h"
#include "recal/schedule/modifier_table.h"
#include "recal/schedule/timeline.h"
#include "recal/schedule/timeline_builder.h"
#include "recal/schedule/train_time.h"

// SetLearningRateModifier, LearningRateModifier and LearningRateFunctionModifier.
namespace lockstep::recal {
namespace {

// Classes and keys have PyTorch's names, as recipes of SparseML write them.

/// Rate change of a LearningRateModifier: `lr_class` and its `lr_kwargs`.
struct LrScheduler {
  std::string name;  ///< ExponentialLR, StepLR, MultiStepLR, CosineAnnealingWarmRestarts
  double gamma = 1;  ///< first three classes: factor at each change
  Period period;     ///< ExponentialLR: 1 epoch; StepLR: between changes; Cosine...: a cycle
  std::vector<Decimal> milestones;  ///< MultiStepLR: absolute epochs of the changes, ascending
  double lr_min = 0;                ///< CosineAnnealingWarmRestarts: rate at the end of a cycle

  bool restarts() const { return name == "CosineAnnealingWarmRestarts"; }
  bool is_multi_step() const { return name == "MultiStepLR"; }
  /// Text such as "x0.9 every 2 epochs".
  std::string text() const {
    if (restarts()) return fmt::format("down to {} in cycles of {}", lr_min, period.text());
    if (!is_multi_step()) return fmt::format("x{} every {}", gamma, period.text());
    std::vector<std::string> epochs;
    for (const Decimal& epoch : milestones) epochs.push_back(epoch.text());
    return fmt::format("x{} at epochs {}", gamma, fmt::join(epochs, ", "));
  }
};

constexpr std::string_view kMilestones = "milestones";

std::optional<Decimal> epoch_of(const YAML::Node& node) {
  const std::optional<double> number = node.IsScalar() ? parse_number(node.Scalar()) : std::nullopt;
  if (!number || *number < 0 || *number > kMaxEpoch) return std::nullopt;
  // Exact: a milestone at 0.1 must convert to the same step everywhere.
  return Decimal::parse(node.Scalar());
}

void read_milestones(ConfigReader* kwargs, LrScheduler* rate) {
  kwargs->require(kMilestones);
  const YAML::Node list =
      kwargs->take(kMilestones, "list of epochs", "absolute epochs at which the rate changes");
  if (!list.IsDefined()) return;
  const auto refuse = [&](const YAML::Node& node, const std::string& why) {
    kwargs->fault_at(node, fmt::format("'{}.{}' {}", kwargs->path(), kMilestones, why));
  };
  if (!list.IsSequence() || list.size() == 0)
    return refuse(list, "must be a list of at least one epoch");
  for (const YAML::Node& item : list) {
    const std::optional<Decimal> epoch = epoch_of(item);
    if (!epoch) return refuse(item, "must contain epochs (decimal numbers, 0 or more)");
    if (!rate->milestones.empty() && *epoch <= rate->milestones.back())
      return refuse(item, fmt::format("must rise: {} follows {}", epoch->text(),
                                      rate->milestones.back().text()));
    rate->milestones.push_back(*epoch);
  }
}

/// Checks milestones against bounds in epochs. Bounds in steps are checked by the timeline, which
/// knows the steps per epoch.
void check_milestones(ConfigReader* kwargs, const Window& window, const LrScheduler& rate) {
  const auto in_epochs = [](const TrainTime& moment) {
    return moment.kind == TrainTime::Kind::kEpoch;
  };
  for (const Decimal& epoch : rate.milestones) {
    const bool too_early = in_epochs(*window.start) && epoch <= window.start->epoch;
    const bool too_late = in_epochs(*window.end) && epoch >= window.end->epoch;
    if (!too_early && !too_late) continue;
    kwargs->refuse(kMilestones,
                   fmt::format("holds {}, which is not between start_epoch ({}) and end_epoch ({})",
                               epoch.text(), window.start->text(), window.end->text()));
  }
}

/// Reads the period of StepLR: `step`, or PyTorch's name `step_size`.
void read_step(ConfigReader* kwargs, Period* period) {
  constexpr std::string_view kHelp = "from one change to the next";
  if (!kwargs->has("step_size")) {
    kwargs->require("step");
    kwargs->read("step", &period->epochs, between(kMinPeriod, kMaxEpoch), kHelp);
    kwargs->take("step_size");
    return;
  }
  if (kwargs->take("step").IsDefined())
    kwargs->fault("step_size", fmt::format("'{}.step' and 'step_size' are both given: keep one of "
                                           "them",
                                           kwargs->path()));
  kwargs->read("step_size", &period->epochs, between(kMinPeriod, kMaxEpoch), kHelp);
}

void read_kwargs(ConfigReader* kwargs, const Window* window, LrScheduler* rate) {
  if (rate->restarts()) {
    read_required(kwargs, "lr_min", &rate->lr_min, at_least(0), "rate at the end of each cycle");
    read_period(kwargs, "cycle_epochs", "length of a cycle", &rate->period);
    return;
  }
  read_required(kwargs, "gamma", &rate->gamma, more_than(0),
                "factor of the learning rate at each change");
  rate->period.epochs = Decimal(1);
  if (rate->name == "StepLR") read_step(kwargs, &rate->period);
  if (rate->is_multi_step()) read_milestones(kwargs, rate);
  if (window != nullptr) check_milestones(kwargs, *window, *rate);
}

/// Reads both required keys. window: bounds for the milestones; null if the window is faulty.
void read_rate_class(ConfigReader* in, const Window* window, LrScheduler* rate) {
  in->require("lr_class");
  in->read_choice("lr_class", &rate->name,
                  {"ExponentialLR", "StepLR", "MultiStepLR", "CosineAnnealingWarmRestarts"},
                  "how the rate falls");
  in->require("lr_kwargs");
  ConfigReader kwargs = in->section("lr_kwargs");
  // A faulty or missing class or map has its fault already.
  if (rate->name.empty() || !in->has("lr_kwargs") || in->node()["lr_kwargs"].IsScalar() ||
      in->node()["lr_kwargs"].IsSequence())
    return;
  read_kwargs(&kwargs, window, rate);
  kwargs.done();
}

struct SetLearningRateOptions {
  Window window;  ///< only a start
  double learning_rate = 0;
  bool start_is_default = false;  ///< the recipe gives no start
  ParamGroups groups;
};

/// Sets the learning rate once, at its start. It stays until another modifier changes it.
class SetLearningRate final : public ModifierWith<SetLearningRateOptions> {
 public:
  using ModifierWith::ModifierWith;

  std::string summary() const override {
    return fmt::format("learning rate {}{}", options_.learning_rate, options_.groups.text());
  }
  void compile(TimelineBuilder* builder) const override {
    if (options_.start_is_default) builder->note_default("start_epoch", "-1, the run's start");
    const int64_t step = builder->step_of(*options_.window.start);
    // A claim of one step: another modifier may take over at the next one.
    builder->claim_learning_rate(options_.groups, {step, step + 1});
    builder->add_for_groups(step, ActionKind::kSetLearningRate, options_.learning_rate,
                            options_.groups);
  }
};

struct LearningRateOptions {
  Window window;
  LrScheduler rate;
  std::optional<double> init_lr;  ///< nullopt: the rate in force at the start
  bool end_is_default = false;    ///< the recipe gives no end
  ParamGroups groups;
};

/// Computes base^exponent by multiplications only: the bits of std::pow depend on the C library.
double power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1) result *= base;
  return result;
}

/// Multiplies the learning rate by gamma at certain epochs, beginning with init_lr, or repeats a
/// cosine decay. Periods count from the start. Milestones are absolute epochs, as in PyTorch's
/// MultiStepLR. After the end the last rate stays.
class LearningRate final : public ModifierWith<LearningRateOptions> {
 public:
  using ModifierWith::ModifierWith;

  void place_in(StageSpan* stage) override {
    stage->place(&options_.window);
    for (Decimal& milestone : options_.rate.milestones) stage->place(&milestone);
  }
  std::string summary() const override {
    const std::string first =
        options_.init_lr ? fmt::format("from {}", *options_.init_lr) : "from the rate in force";
    return fmt::format("{} {}, {}{}", options_.rate.name, first, options_.rate.text(),
                       options_.groups.text());
  }
  void compile(TimelineBuilder* builder) const override {
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

 private:
  /// Adds actions in one of three ways: a formula for cosine cycles, one per period, one per
  /// milestone.
  void add(TimelineBuilder* builder, StepRange steps, double base,
           const ParamGroups& groups) const {
    if (options_.rate.restarts()) return add_cycles(builder, steps, base, groups);
    if (options_.rate.is_multi_step()) return add_milestones(builder, steps, base, groups);
    for (const auto& [k, step] : builder->updates(options_.window, options_.rate.period, steps.end))
      builder->add_for_groups(step, ActionKind::kSetLearningRate,
                              base * power(options_.rate.gamma, k), groups);
  }
  void add_cycles(TimelineBuilder* builder, StepRange steps, double base,
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
  void add_milestones(TimelineBuilder* builder, StepRange steps, double base,
                      const ParamGroups& groups) const {
    builder->add_for_groups(steps.first, ActionKind::kSetLearningRate, base, groups);
    int64_t k = 0;
    for (const Decimal& epoch : options_.rate.milestones) {
      const int64_t step = builder->step_of(TrainTime::at_epoch(epoch));
      const double rate = base * power(options_.rate.gamma, ++k);
      // A milestone at the end has no step left. Its power of gamma still counts for later ones.
      if (step < steps.end)
        builder->add_for_groups(step, ActionKind::kSetLearningRate, rate, groups);
    }
  }
  void check_milestones(TimelineBuilder* builder, StepRange steps) const {
    for (const Decimal& epoch : options_.rate.milestones) {
      const int64_t step = builder->step_of(TrainTime::at_epoch(epoch));
      if (step < steps.first || step > steps.end)
        builder->fault(
            fmt::format("{} has a milestone at epoch {} (step {}), outside its steps {} "
                        "to {}",
                        tag(), epoch.text(), step, steps.first, steps.end));
    }
  }
};

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
class LearningRateFunction final : public ModifierWith<LearningRateFunctionOptions> {
 public:
  using ModifierWith::ModifierWith;

  std::string summary() const override {
    return fmt::format(
        "{} from {} to {}{}{}", options_.lr_func, options_.init_lr, options_.final_lr,
        is_cyclic() ? ", again every " + options_.cycle.text() : "", options_.groups.text());
  }
  void compile(TimelineBuilder* builder) const override {
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

 private:
  bool is_cyclic() const { return options_.lr_func == "cyclic_linear"; }
};

}  // namespace

Modifiers read_set_learning_rate(ConfigReader* in, const SourceLocation& location) {
  SetLearningRateOptions options;
  options.start_is_default = read_start(in, "moment at which the rate is set", &options.window);
  read_required(in, "learning_rate", &options.learning_rate, at_least(0), "the new learning rate");
  read_param_groups(in, &options.groups);
  read_logging(in);
  read_no_end(in, kActsOnce);
  in->done();
  return one_modifier<SetLearningRate>(std::move(options), *in, location);
}

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
