#include <string>

#include <fmt/format.h>

#include "recal/schedule/modifier_fields.h"
#include "recal/schedule/modifier_table.h"
#include "recal/schedule/param_selector.h"
#include "recal/schedule/timeline_builder.h"
#include "recal/schedule/train_time.h"

// Modifiers of parameters: trainable or frozen, and values set at once or gradually.
namespace lockstep::recal {
namespace {

struct TrainableParamsOptions {
  ParamSelector params;
  bool trainable = true;
  bool exclusive = false;  ///< freeze all other parameters; requires `trainable`
  Window window;           ///< open bounds: those of the run
  bool params_strict = true;
  ParamLogs logs = ParamLogs::kByDefault;
};

/// Trains or freezes the named parameters. At its end they return to their earlier state.
class TrainableParams final : public Modifier {
 public:
  TrainableParams(TrainableParamsOptions options, std::string tag, SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), options_(std::move(options)) {}

  Window window() const override { return options_.window; }
  void place_in(StageSpan* stage) override { stage->place_open(&options_.window); }
  std::string summary() const override;
  void compile(TimelineBuilder* builder) const override;
  ParamLogs param_logs() const override { return options_.logs; }

 private:
  TrainableParamsOptions options_;
};

std::string TrainableParams::summary() const {
  return fmt::format("{} {}{}", options_.trainable ? "trains" : "freezes", options_.params.text(),
                     options_.exclusive ? ", freezes all others" : "");
}

void TrainableParams::compile(TimelineBuilder* builder) const {
  const auto& [start, end] = options_.window;
  if (start && end && !builder->steps_of(options_.window)) return;
  const StepRange steps{start ? builder->step_of(*start) : 0,
                        end && !end->is_run_end() ? builder->step_of(*end) : INT64_MAX};
  // The actions follow later (TimelineBuilder::add_trainable_changes): what is restored at the end
  // depends on other modifiers of the same parameters.
  if (steps.first < steps.end)
    builder->claim_trainable({options_.params, options_.params_strict}, steps, options_.trainable,
                             options_.exclusive);
}

}  // namespace

Modifiers read_trainable_params(ConfigReader* in, const SourceLocation& location) {
  TrainableParamsOptions options;
  options.params.read(in, "params");
  in->read("trainable", &options.trainable, "true: they are trained; false: they are frozen");
  in->read("exclusive", &options.exclusive, "with trainable: all others are frozen");
  if (options.exclusive && !options.trainable)
    in->fault("exclusive",
              fmt::format("'{0}.exclusive' freezes all others, which needs 'trainable: true': name "
                          "the parameters to be trained",
                          in->path()));
  read_window(in, &options.window, Bounds::kOptional);
  read_params_strict(in, &options.params_strict);
  read_constant_logging(in);
  read_log_types(in, &options.logs);
  in->done();
  return one_modifier<TrainableParams>(std::move(options), *in, location);
}

namespace {

struct SetParamOptions {
  ParamSelector params;
  double val = 0;
  std::optional<TrainTime> start;
  bool start_is_default = false;  ///< the recipe gives no start
  bool params_strict = true;
  ParamLogs logs = ParamLogs::kByDefault;
};

/// Sets every element of the named parameters once, at its start. Training continues from there.
class SetParam final : public Modifier {
 public:
  SetParam(SetParamOptions options, std::string tag, SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), options_(std::move(options)) {}

  Window window() const override { return {options_.start, std::nullopt}; }
  void place_in(StageSpan* stage) override { stage->place(&options_.start); }
  std::string summary() const override;
  void compile(TimelineBuilder* builder) const override;
  ParamLogs param_logs() const override { return options_.logs; }

 private:
  SetParamOptions options_;
};

std::string SetParam::summary() const {
  return fmt::format("sets {} to {}", options_.params.text(), options_.val);
}

void SetParam::compile(TimelineBuilder* builder) const {
  if (options_.start_is_default) builder->note_default("start_epoch", "-1, the run's start");
  const int64_t step = builder->step_of(*options_.start);
  // A claim of one step: two modifiers may set a parameter at different steps.
  builder->add(step, ActionKind::kSetParam, options_.val,
               builder->claim_values({options_.params, options_.params_strict}, {step, step + 1}));
}

}  // namespace

Modifiers read_set_param(ConfigReader* in, const SourceLocation& location) {
  SetParamOptions options;
  options.params.read(in, "params");
  read_param_value(in, "val", &options.val, "the new value of every element");
  options.start_is_default = lacks_moment(*in, "start");
  read_moment(in,
              {.name = "start",
               .help = "moment at which the values are set",
               .minus_one = MinusOne::kRunStart,
               .is_minus_one_by_default = true},
              &options.start);
  read_params_strict(in, &options.params_strict);
  read_constant_logging(in);
  read_log_types(in, &options.logs);
  read_no_end(in, kActsOnce);
  in->done();
  return one_modifier<SetParam>(std::move(options), *in, location);
}

// Same curve and update rule as gradual pruning, but for the values of any parameters.
namespace {

struct GradualParamOptions {
  ParamSelector params;
  double init_val = 0;
  double final_val = 0;
  Window window;
  Period update_frequency;
  std::string inter_func = "linear";  ///< recal/schedule/train_time.h
  bool params_strict = true;
  ParamLogs logs = ParamLogs::kByDefault;
};

/// Sets every element of the named parameters repeatedly, from init_val at the start to final_val
/// at the end. Between two updates training may change them.
class GradualParam final : public Modifier {
 public:
  GradualParam(GradualParamOptions options, std::string tag, SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), options_(std::move(options)) {}

  Window window() const override { return options_.window; }
  void place_in(StageSpan* stage) override { stage->place(&options_.window); }
  std::string summary() const override;
  void compile(TimelineBuilder* builder) const override;
  ParamLogs param_logs() const override { return options_.logs; }

 private:
  GradualParamOptions options_;
};

std::string GradualParam::summary() const {
  return fmt::format("sets {} from {} to {} ({}), every {}", options_.params.text(),
                     options_.init_val, options_.final_val, options_.inter_func,
                     options_.update_frequency.text());
}

void GradualParam::compile(TimelineBuilder* builder) const {
  const std::optional<StepRange> steps = builder->steps_of(options_.window);
  if (!steps) return;
  // The end step is claimed too: the final value is set there.
  const int param_set = builder->claim_values({options_.params, options_.params_strict},
                                              {steps->first, steps->end + 1});
  const double span = options_.final_val - options_.init_val;
  for (const auto& [k, step] :
       builder->updates(options_.window, options_.update_frequency, steps->end)) {
    const double done =
        builder->converter().fraction_done(k, options_.window, options_.update_frequency);
    builder->add(step, ActionKind::kSetParam,
                 options_.init_val + span * curve(options_.inter_func, done), param_set);
  }
  builder->add(steps->end, ActionKind::kSetParam, options_.final_val, param_set);
}

}  // namespace

Modifiers read_gradual_param(ConfigReader* in, const SourceLocation& location) {
  GradualParamOptions options;
  options.params.read(in, "params");
  read_param_value(in, "init_val", &options.init_val, "value at the start");
  read_param_value(in, "final_val", &options.final_val, "value from the end on");
  read_window(in, &options.window);
  read_update_frequency(in, &options.update_frequency);
  in->read_choice("inter_func", &options.inter_func, interpolation_names(),
                  "curve from init_val to final_val");
  read_params_strict(in, &options.params_strict);
  read_constant_logging(in);
  read_log_types(in, &options.logs);
  in->done();
  return one_modifier<GradualParam>(std::move(options), *in, location);
}

}  // namespace lockstep::recal
