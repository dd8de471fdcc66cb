#include "recal/modifiers/trainable_params.h"

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {

std::unique_ptr<Modifier> TrainableParams::read(YamlFields* in, Place place) {
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
  return std::make_unique<TrainableParams>(std::move(options), in->path(), std::move(place));
}

std::string TrainableParams::summary() const {
  return fmt::format("{} {}{}", options_.trainable ? "trains" : "freezes", options_.params.text(),
                     options_.exclusive ? ", freezes all others" : "");
}

void TrainableParams::contribute(TimelineBuilder* builder) const {
  const auto& [start, end] = options_.window;
  if (start && end && !builder->steps_of(options_.window)) return;
  const StepRange steps{start ? builder->step_of(*start) : 0,
                        end && !end->is_run_end() ? builder->step_of(*end) : INT64_MAX};
  if (steps.first < steps.last)
    builder->claim_trainable({options_.params, options_.params_strict}, steps, options_.trainable,
                             options_.exclusive);
}

}  // namespace lockstep::recal
