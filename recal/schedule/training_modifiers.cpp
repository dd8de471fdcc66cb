#include <fmt/format.h>

#include "base/tensors/param_info.h"
#include "recal/schedule/modifier_fields.h"
#include "recal/schedule/modifier_table.h"
#include "recal/schedule/param_selector.h"
#include "recal/schedule/timeline_builder.h"

// EpochRangeModifier and SetWeightDecayModifier.
namespace lockstep::recal {
namespace {

struct EpochRangeOptions {
  Window window;
};

/// Sets the length of training: a bound without an action. A later end of another modifier wins. A
/// run always begins at step 0; another start only causes a note.
class EpochRange final : public ModifierWith<EpochRangeOptions> {
 public:
  using ModifierWith::ModifierWith;

  std::string summary() const override {
    return "trains to " + options_.window.end->sentence_text();
  }
  void compile(TimelineBuilder* builder) const override {
    const std::optional<StepRange> steps = builder->steps_of(options_.window);
    if (steps && steps->first > 0)
      builder->note(fmt::format("its start at {} changes nothing: a run begins at step 0",
                                options_.window.start->sentence_text()));
  }
};

struct SetWeightDecayOptions {
  Window window;                  ///< only a start
  double weight_decay = 0;        ///< L2
  bool start_is_default = false;  ///< the recipe gives no start
  // By default only weights decay, as in the optimizer.
  ParamGroups groups{{kWeightGroup}};
};

/// Sets the weight decay once, at its start. It stays until another modifier changes it.
class SetWeightDecay final : public ModifierWith<SetWeightDecayOptions> {
 public:
  using ModifierWith::ModifierWith;

  std::string summary() const override {
    const bool is_usual = options_.groups.numbers == std::vector<int>{kWeightGroup};
    return fmt::format("weight decay {}{}", options_.weight_decay,
                       is_usual ? "" : options_.groups.text());
  }
  void compile(TimelineBuilder* builder) const override {
    if (options_.start_is_default) builder->note_default("start_epoch", "-1, the run's start");
    const int64_t step = builder->step_of(*options_.window.start);
    builder->claim_weight_decay(options_.groups, step);
    builder->add_for_groups(step, ActionKind::kSetWeightDecay, options_.weight_decay,
                            options_.groups);
  }
};

}  // namespace

Modifiers read_epoch_range(ConfigReader* in, const SourceLocation& location) {
  EpochRangeOptions options;
  read_window(in, &options.window);
  in->done();
  return one_modifier<EpochRange>(options, *in, location);
}

Modifiers read_set_weight_decay(ConfigReader* in, const SourceLocation& location) {
  SetWeightDecayOptions options;
  options.start_is_default = read_start(in, "moment at which the decay is set", &options.window);
  read_required(in, "weight_decay", &options.weight_decay, at_least(0),
                "the new weight decay (L2); 0 turns it off");
  read_param_groups(in, &options.groups);
  read_logging(in);
  read_no_end(in, kActsOnce);
  in->done();
  return one_modifier<SetWeightDecay>(std::move(options), *in, location);
}

}  // namespace lockstep::recal
