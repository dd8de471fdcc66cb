#include <string>

#include <fmt/format.h>

#include "recal/schedule/modifier_fields.h"
#include "recal/schedule/modifier_table.h"
#include "recal/schedule/timeline_builder.h"

// ACDCPruningModifier: alternates dense and pruned phases.
namespace lockstep::recal {
namespace {

struct AcdcOptions {
  Selection selected;
  double compression_sparsity = 0;
  Window window;
  Period update_frequency;  ///< length of a phase
  bool leave_enabled = true;
  bool momentum_buffer_reset = true;  ///< at the start of each dense phase but the first
  MaskRule mask_rule;
};

/// Trains dense and pruned networks in turn (Peste et al., arXiv:2106.12379). The first phase is
/// dense, the last one pruned. A new pruned phase prunes the smallest weights of its start.
class AcdcPruning final : public ModifierWith<AcdcOptions> {
 public:
  using ModifierWith::ModifierWith;

  std::string summary() const override {
    return fmt::format(
        "alternates {} between dense and {} pruned, every {}{}{}{}",
        options_.selected.params.text(), options_.compression_sparsity,
        options_.update_frequency.text(),
        options_.mask_rule.kind == MaskKind() ? "" : ", " + options_.mask_rule.kind.text(),
        options_.mask_rule.global ? ", one threshold over all" : "",
        options_.leave_enabled ? "" : ", then releases the masks");
  }
  void compile(TimelineBuilder* builder) const override {
    const std::optional<StepRange> steps = builder->steps_of(options_.window);
    if (!steps) return;
    const int pruned = builder->claim_gradual_pruning(
        options_.selected, {.steps = *steps,
                            .init_sparsity = 0,
                            .final_sparsity = options_.compression_sparsity,
                            .leave_enabled = options_.leave_enabled,
                            .mask_rule = options_.mask_rule});
    const int dense =
        options_.momentum_buffer_reset ? builder->with_momentum_reset(pruned) : pruned;
    bool is_pruned = false;
    for (const auto& [k, step] :
         builder->updates(options_.window, options_.update_frequency, steps->end)) {
      // The phase that reaches the end is pruned, whatever its number is.
      const bool is_last = builder->converter().fraction_done(k + 1, options_.window,
                                                              options_.update_frequency) >= 1;
      const bool prunes = k % 2 == 1 || is_last;
      if (prunes == is_pruned) continue;
      is_pruned = prunes;
      builder->add(step, ActionKind::kPrune, prunes ? options_.compression_sparsity : 0, pruned);
      if (!prunes) builder->add(step, ActionKind::kRelease, 0, dense);
    }
    if (!options_.leave_enabled) builder->add(steps->end, ActionKind::kRelease, 0, pruned);
  }
  bool prunes() const override { return true; }
  ParamLogs param_logs() const override { return options_.selected.logs; }
};

}  // namespace

Modifiers read_acdc_pruning(ConfigReader* in, const SourceLocation& location) {
  AcdcOptions options;
  options.mask_rule.global = true;
  options.selected.params.read(in, "params");
  read_required(in, "compression_sparsity", &options.compression_sparsity, half_open(0, 1),
                "pruned fraction in pruned phases");
  read_window(in, &options.window);
  read_period(in, "update_frequency", "length of a phase; usual: 5", &options.update_frequency);
  in->read("leave_enabled", &options.leave_enabled, "whether masks are kept after the end");
  in->read("global_sparsity", &options.mask_rule.global,
           "one threshold over all parameters, not one each");
  read_mask_kind(in, &options.mask_rule.kind);
  in->read("momentum_buffer_reset", &options.momentum_buffer_reset,
           "true: reset the optimizer's momentum to 0 at the start of a dense phase");
  read_params_strict(in, &options.selected.strict);
  read_log_types(in, &options.selected.logs);
  const MaskKind& kind = options.mask_rule.kind;
  if (kind.pattern == MaskPattern::kNofM &&
      options.compression_sparsity >
          1.0 - static_cast<double>(kind.n) / static_cast<double>(kind.m) + kRoundingOfSparsity)
    in->refuse("compression_sparsity", fmt::format("is {}, which mask_type {} cannot reach",
                                                   options.compression_sparsity, kind.text()));
  in->done();
  return one_modifier<AcdcPruning>(std::move(options), *in, location);
}

}  // namespace lockstep::recal
