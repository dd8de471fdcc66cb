#include "recal/modifiers/modifiers.h"

#include <fmt/format.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/params/param_selector.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {
namespace {

struct ConstantPruningOptions {
  ParamSelector params;
  Window window;  ///< open bounds: those of the run
  bool params_strict = true;
  ParamLogs logs = ParamLogs::kByDefault;
};

/// Keeps the existing zeros of the named weights, for a model that was pruned before. For
/// parameters of a gradual modifier listed before, it starts at that modifier's end and keeps its
/// zeros.
class ConstantPruning final : public Modifier {
 public:
  ConstantPruning(ConstantPruningOptions options, std::string tag, SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), options_(std::move(options)) {}

  Window window() const override { return options_.window; }
  void place_in(StageSpan* stage) override { stage->place_open(&options_.window); }
  std::string summary() const override;
  void compile(TimelineBuilder* builder) const override;
  bool prunes() const override { return true; }
  ParamLogs param_logs() const override { return options_.logs; }

 private:
  ConstantPruningOptions options_;
};

std::string ConstantPruning::summary() const {
  return fmt::format("keeps the zeros of {}", options_.params.text());
}

void ConstantPruning::compile(TimelineBuilder* builder) const {
  const auto& [start, end] = options_.window;
  // A fault in the window was reported by steps_of(); nothing to add then.
  if (start && end && !builder->steps_of(options_.window)) return;
  const int64_t first = start ? builder->step_of(*start) : 0;
  // An end at the run's end does not release the mask: the exported model must keep its zeros.
  const std::optional<int64_t> last =
      end && !end->is_run_end() ? std::optional<int64_t>(builder->step_of(*end)) : std::nullopt;
  for (const auto& [step, param_set] :
       builder->claim_constant_pruning({options_.params, options_.params_strict}, first, last)) {
    builder->add(step, ActionKind::kKeepZeros, 0, param_set);
    if (last) builder->add(*last, ActionKind::kRelease, 0, param_set);
  }
}

}  // namespace

Modifiers read_constant_ks(ConfigReader* in, const SourceLocation& location) {
  ConstantPruningOptions options;
  options.params.read(in, "params");
  read_window(in, &options.window, Bounds::kOptional);
  read_params_strict(in, &options.params_strict);
  read_log_types(in, &options.logs);
  read_minus_one(in, "update_frequency", "masks are kept at every step");
  in->done();
  return one_modifier<ConstantPruning>(std::move(options), *in, location);
}

}  // namespace lockstep::recal
