#include "recal/set_weight_decay.h"

#include <fmt/format.h>

#include "recal/modifier_fields.h"
#include "recal/timeline_builder.h"

namespace lockstep::recal {

std::unique_ptr<Modifier> SetWeightDecay::read(YamlFields* in, Place place) {
  SetWeightDecayOptions options;
  read_moment(in,
              {.name = "start",
               .help = "moment at which the decay is set",
               .minus_one = MinusOne::kRunStart},
              &options.start);
  read_required(in, "weight_decay", &options.weight_decay, at_least(0),
                "the new weight decay (L2); 0 turns it off");
  read_param_groups(in, &options.group);
  read_logging(in);
  read_no_end(in, kActsOnce);
  in->done();
  return std::make_unique<SetWeightDecay>(options, in->path(), std::move(place));
}

std::string SetWeightDecay::summary() const {
  const int group = options_.group;  // the weights' is the usual one
  return fmt::format("weight decay {}{}", options_.weight_decay,
                     group == kWeightGroup ? ""
                     : group == kAllGroups ? " of all parameter groups"
                                           : of_group(group));
}

void SetWeightDecay::contribute(TimelineBuilder* builder) const {
  const int64_t step = builder->step_of(*options_.start);
  builder->claim_weight_decay(options_.group, step);
  builder->add_for_group(step, ActionKind::kSetWeightDecay, options_.weight_decay, options_.group);
}

}  // namespace lockstep::recal
