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
  Selection selected;
  bool trainable = true;
  bool exclusive = false;  ///< freeze all other parameters; requires `trainable`
  Window window;           ///< open bounds: those of the run
};

/// Trains or freezes the named parameters. At its end they return to their earlier state.
class TrainableParams final : public ModifierWith<TrainableParamsOptions> {
 public:
  using ModifierWith::ModifierWith;

  void place_in(StageSpan* stage) override { stage->place_open(&options_.window); }
  ParamLogs param_logs() const override { return options_.selected.logs; }
  std::string summary() const override {
    return fmt::format("{} {}{}", options_.trainable ? "trains" : "freezes",
                       options_.selected.params.text(),
                       options_.exclusive ? ", freezes all others" : "");
  }
  void compile(TimelineBuilder* builder) const override {
    const auto& [start, end] = options_.window;
    if (start && end && !builder->steps_of(options_.window)) return;
    const StepRange steps{start ? builder->step_of(*start) : 0,
                          end && !end->is_run_end() ? builder->step_of(*end) : INT64_MAX};
    // The actions follow later (TimelineBuilder::add_trainable_changes): what is restored at the
    // end depends on other modifiers of the same parameters.
    if (steps.first < steps.end)
      builder->claim_trainable(options_.selected, steps, options_.trainable, options_.exclusive);
  }
};

struct SetParamOptions {
  Selection selected;
  double val = 0;
  Window window;                  ///< only a start
  bool start_is_default = false;  ///< the recipe gives no start
};

/// Sets every element of the named parameters once, at its start. Training continues from there.
class SetParam final : public ModifierWith<SetParamOptions> {
 public:
  using ModifierWith::ModifierWith;

  ParamLogs param_logs() const override { return options_.selected.logs; }
  std::string summary() const override {
    return fmt::format("sets {} to {}", options_.selected.params.text(), options_.val);
  }
  void compile(TimelineBuilder* builder) const override {
    if (options_.start_is_default) builder->note_default("start_epoch", "-1, the run's start");
    const int64_t step = builder->step_of(*options_.window.start);
    // A claim of one step: two modifiers may set a parameter at different steps.
    builder->add(step, ActionKind::kSetParam, options_.val,
                 builder->claim_values(options_.selected, {step, step + 1}));
  }
};

struct GradualParamOptions {
  Selection selected;
  double init_val = 0;
  double final_val = 0;
  Window window;
  Period update_frequency;
  std::string inter_func = "linear";  ///< recal/schedule/train_time.h
};

/// Sets every element of the named parameters repeatedly, from init_val at the start to final_val
/// at the end, with the curve and the update rule of gradual pruning. Between two updates training
/// may change them.
class GradualParam final : public ModifierWith<GradualParamOptions> {
 public:
  using ModifierWith::ModifierWith;

  ParamLogs param_logs() const override { return options_.selected.logs; }
  std::string summary() const override {
    return fmt::format("sets {} from {} to {} ({}), every {}", options_.selected.params.text(),
                       options_.init_val, options_.final_val, options_.inter_func,
                       options_.update_frequency.text());
  }
  void compile(TimelineBuilder* builder) const override {
    const std::optional<StepRange> steps = builder->steps_of(options_.window);
    if (!steps) return;
    // The end step is claimed too: the final value is set there.
    const int param_set = builder->claim_values(options_.selected, {steps->first, steps->end + 1});
    builder->add_gradual(ActionKind::kSetParam, param_set,
                         {options_.window, options_.update_frequency, options_.inter_func,
                          options_.init_val, options_.final_val});
  }
};

}  // namespace

Modifiers read_trainable_params(ConfigReader* in, const SourceLocation& location) {
  TrainableParamsOptions options;
  options.selected.params.read(in, "params");
  in->read("trainable", &options.trainable, "true: they are trained; false: they are frozen");
  in->read("exclusive", &options.exclusive, "with trainable: all others are frozen");
  if (options.exclusive && !options.trainable)
    in->fault("exclusive",
              fmt::format("'{0}.exclusive' freezes all others, which needs 'trainable: true': name "
                          "the parameters to be trained",
                          in->path()));
  read_window(in, &options.window, Bounds::kOptional);
  read_params_strict(in, &options.selected.strict);
  read_constant_logging(in);
  read_log_types(in, &options.selected.logs);
  in->done();
  return one_modifier<TrainableParams>(std::move(options), *in, location);
}

Modifiers read_set_param(ConfigReader* in, const SourceLocation& location) {
  SetParamOptions options;
  options.selected.params.read(in, "params");
  read_param_value(in, "val", &options.val, "the new value of every element");
  options.start_is_default = read_start(in, "moment at which the values are set", &options.window);
  read_params_strict(in, &options.selected.strict);
  read_constant_logging(in);
  read_log_types(in, &options.selected.logs);
  read_no_end(in, kActsOnce);
  in->done();
  return one_modifier<SetParam>(std::move(options), *in, location);
}

Modifiers read_gradual_param(ConfigReader* in, const SourceLocation& location) {
  GradualParamOptions options;
  options.selected.params.read(in, "params");
  read_param_value(in, "init_val", &options.init_val, "value at the start");
  read_param_value(in, "final_val", &options.final_val, "value from the end on");
  read_window(in, &options.window);
  read_update_frequency(in, &options.update_frequency);
  in->read_choice("inter_func", &options.inter_func, interpolation_names(),
                  "curve from init_val to final_val");
  read_params_strict(in, &options.selected.strict);
  read_constant_logging(in);
  read_log_types(in, &options.selected.logs);
  in->done();
  return one_modifier<GradualParam>(std::move(options), *in, location);
}

}  // namespace lockstep::recal
