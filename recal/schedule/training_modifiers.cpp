#include <fmt/format.h>

#include "base/tensors/param_info.h"
#include "recal/schedule/modifier_fields.h"
#include "recal/schedule/modifier_table.h"
#include "recal/schedule/param_selector.h"
#include "recal/schedule/timeline_builder.h"

// EpochRangeModifier and SetWeightDecayModifier.
namespace lockstep::recal {
namespace {

/// Sets the length of training: a bound without an action. A later end of another modifier wins. A
/// run always begins at step 0; another start only causes a note.
class EpochRange final : public Modifier {
 public:
  EpochRange(Window window, std::string tag, SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), window_(window) {}

  Window window() const override { return window_; }
  void place_in(StageSpan* stage) override { stage->place(&window_); }
  std::string summary() const override;
  void compile(TimelineBuilder* builder) const override;

 private:
  Window window_;
};

std::string EpochRange::summary() const { return "trains to " + window_.end->sentence_text(); }

void EpochRange::compile(TimelineBuilder* builder) const {
  const std::optional<StepRange> steps = builder->steps_of(window_);
  if (steps && steps->first > 0)
    builder->note(fmt::format("its start at {} changes nothing: a run begins at step 0",
                              window_.start->sentence_text()));
}

}  // namespace

Modifiers read_epoch_range(ConfigReader* in, const SourceLocation& location) {
  Window window;
  read_window(in, &window);
  in->done();
  return one_modifier<EpochRange>(window, *in, location);
}

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
