#include "recal/modifiers/set_weight_decay.h"

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {

std::unique_ptr<Modifier> SetWeightDecay::read(YamlFields* in, Place place) {
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
  return std::make_unique<SetWeightDecay>(options, in->path(), std::move(place));
}

std::string SetWeightDecay::summary() const {
  const bool is_usual = options_.groups.numbers == std::vector<int>{kWeightGroup};
  return fmt::format("weight decay {}{}", options_.weight_decay,
                     is_usual ? "" : options_.groups.text());
}

void SetWeightDecay::contribute(TimelineBuilder* builder) const {
  if (options_.start_is_default) builder->note_default("start_epoch", "-1, the run's start");
  const int64_t step = builder->step_of(*options_.start);
  builder->claim_weight_decay(options_.groups, step);
  builder->add_for_groups(step, ActionKind::kSetWeightDecay, options_.weight_decay,
                          options_.groups);
}

}  // namespace lockstep::recal
