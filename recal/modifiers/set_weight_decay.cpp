#include "recal/modifiers/modifiers.h"

#include <fmt/format.h>

#include "base/tensors/param_group.h"
#include "recal/modifiers/modifier_fields.h"
#include "recal/params/param_groups.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {
namespace {

struct SetWeightDecayOptions {
  std::optional<TrainTime> start;
  double weight_decay = 0;        ///< L2
  bool start_is_default = false;  ///< the recipe gives no start
  // By default only weights decay, as in the optimizer.
  ParamGroups groups{{kWeightGroup}};
};

/// Sets the weight decay once, at its start. It stays until another modifier changes it.
class SetWeightDecay final : public Modifier {
 public:
  SetWeightDecay(SetWeightDecayOptions options, std::string tag, SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), options_(options) {}

  Window window() const override { return {options_.start, std::nullopt}; }
  void place_in(StageSpan* stage) override { stage->place(&options_.start); }
  std::string summary() const override;
  void compile(TimelineBuilder* builder) const override;

 private:
  SetWeightDecayOptions options_;
};

std::string SetWeightDecay::summary() const {
  const bool is_usual = options_.groups.numbers == std::vector<int>{kWeightGroup};
  return fmt::format("weight decay {}{}", options_.weight_decay,
                     is_usual ? "" : options_.groups.text());
}

void SetWeightDecay::compile(TimelineBuilder* builder) const {
  if (options_.start_is_default) builder->note_default("start_epoch", "-1, the run's start");
  const int64_t step = builder->step_of(*options_.start);
  builder->claim_weight_decay(options_.groups, step);
  builder->add_for_groups(step, ActionKind::kSetWeightDecay, options_.weight_decay,
                          options_.groups);
}

}  // namespace

Modifiers read_set_weight_decay(ConfigReader* in, const SourceLocation& location) {
  SetWeightDecayOptions options;
  options.start_is_default = lacks_moment(*in, "start");
  read_moment(in,
              {.name = "start",
               .help = "moment at which the decay is set",
               .minus_one = MinusOne::kRunStart,
               .is_minus_one_by_default = true},
              &options.start);
  read_required(in, "weight_decay", &options.weight_decay, at_least(0),
                "the new weight decay (L2); 0 turns it off");
  read_param_groups(in, &options.groups);
  read_logging(in);
  read_no_end(in, kActsOnce);
  in->done();
  return one_modifier<SetWeightDecay>(options, *in, location);
}

}  // namespace lockstep::recal
