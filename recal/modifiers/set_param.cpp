#include "recal/modifiers/set_param.h"

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {

std::unique_ptr<Modifier> SetParam::read(YamlFields* in, Place place) {
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
  return std::make_unique<SetParam>(std::move(options), in->path(), std::move(place));
}

std::string SetParam::summary() const {
  return fmt::format("sets {} to {}", options_.params.text(), options_.val);
}

void SetParam::contribute(TimelineBuilder* builder) const {
  if (options_.start_is_default) builder->note_default("start_epoch", "-1, the run's start");
  const int64_t step = builder->step_of(*options_.start);
  builder->add(step, ActionKind::kSetParam, options_.val,
               builder->claim_values({options_.params, options_.params_strict}, {step, step + 1}));
}

}  // namespace lockstep::recal
