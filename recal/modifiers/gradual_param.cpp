#include "recal/modifiers/modifiers.h"

#include <string>

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/params/param_selector.h"
#include "recal/time/interpolate.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {
// Same curve and update rule as gradual pruning, but for the values of any parameters.
namespace {

struct GradualParamOptions {
  ParamSelector params;
  double init_val = 0;
  double final_val = 0;
  Window window;
  Period update_frequency;
  std::string inter_func = "linear";  ///< recal/time/interpolate.h
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
