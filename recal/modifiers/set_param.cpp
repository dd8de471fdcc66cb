#include "recal/modifiers/modifiers.h"

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/params/param_selector.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {
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

}  // namespace lockstep::recal
