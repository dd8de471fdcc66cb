#include "recal/modifiers/modifiers.h"

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/params/param_selector.h"
#include "recal/timeline/timeline_builder.h"

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

}  // namespace lockstep::recal
