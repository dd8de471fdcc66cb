#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "recal/time/step_converter.h"
#include "recal/timeline/group_claims.h"
#include "recal/timeline/pruning_claims.h"
#include "recal/timeline/quantization_claims.h"
#include "recal/timeline/timeline.h"
#include "recal/timeline/trainable_claims.h"

namespace lockstep::recal {

/// Parameters that a modifier names, and how strictly.
struct Selection {
  const ParamSelector& params;
  bool strict = true;  ///< an entry without a match is a fault, else a warning
};

/// Claim of a gradual pruning modifier.
struct GradualPruning {
  StepRange steps;
  double init_sparsity = 0;
  double final_sparsity = 0;
  bool leave_enabled = true;
  MaskRule mask_rule;
  bool momentum_buffer_reset = false;
};

/// Interface for modifiers while a timeline is compiled: conversions, claims (permission to change
/// something) and the list of actions. Modifiers compile in recipe order.
class TimelineBuilder {
 public:
  TimelineBuilder(const Recipe& recipe, const TimelineInputs& inputs, Diagnostics* faults);
  Timeline build();

  const StepConverter& converter() const { return converter_; }
  const TimelineInputs& inputs() const { return inputs_; }
  int64_t step_of(const TrainTime& moment) const { return converter_.step_of(moment); }
  /// Steps of a window with both bounds. Returns nullopt, with a fault, if the end is not after the
  /// start. first == end if the window is shorter than a step.
  std::optional<StepRange> steps_of(const Window& window);
  /// Calls StepConverter::updates(). Too many updates are a fault.
  std::vector<PeriodicUpdate> updates(const Window& window, const Period& period, int64_t end_step);

  /// Claims the rate of these groups at these steps for the current modifier. Adds a fault if
  /// another modifier or the optimizer's decay sets it, or for an unknown group. Without a model an
  /// unknown group is only a note.
  void claim_learning_rate(const ParamGroups& groups, StepRange steps);
  void claim_weight_decay(const ParamGroups& groups, int64_t step);
  /// Runs `compile` for the current modifier after all modifiers have compiled, in the order of
  /// `step`. For modifiers whose actions depend on the state before `step`.
  void defer(int64_t step, std::function<void()> compile);
  /// Learning rates of these groups just before `step`; one entry if they are equal. Only valid in
  /// a function that was deferred to `step`.
  std::vector<std::pair<ParamGroups, double>> rates_in_force(int64_t step,
                                                             const ParamGroups& groups) const;
  /// Claims these parameters for pruning by the current modifier. Adds a fault if another one
  /// prunes them. Returns the parameter set.
  int claim_gradual_pruning(const Selection& selection, const GradualPruning& pruning);
  /// Claims these parameters' zeros for the current modifier, from `first` to `last` or the end.
  /// For parameters of a gradual modifier listed earlier, the claim begins at its end. Returns
  /// pairs (step, parameter set). Adds a fault if another constant modifier has one of the
  /// parameters.
  std::vector<std::pair<int64_t, int>> claim_constant_pruning(const Selection& selection,
                                                              int64_t first,
                                                              std::optional<int64_t> last);
  /// Claims the trainability of these parameters; with `exclusive` all others get the opposite. The
  /// builder adds the actions itself, at the end.
  void claim_trainable(const Selection& selection, StepRange steps, bool trainable, bool exclusive);
  /// Indexes of the layers of these names, or of all layers (null). Empty without a model. An
  /// unknown name is a fault.
  std::vector<int64_t> resolve_layers(const ParamSelector* submodules);
  /// Claims claim.layers for quantization and sets claim.modifier. Returns the parameter set of
  /// their weights, named `text` without a model.
  int claim_quantization(QuantizationClaim claim, const std::string& text);
  /// Claims any parameters, whose values the current modifier sets at these steps.
  int claim_values(const Selection& selection, StepRange steps);

  void add(int64_t step, ActionKind kind, double value, int param_set = -1);
  void add_for_groups(int64_t step, ActionKind kind, double value, const ParamGroups& groups);
  /// Adds a learning rate that changes at every step from first_step on.
  void add_formula(int64_t first_step, const LrSchedule& formula, const ParamGroups& groups);
  /// Adds a change of values by the modifier's own function; param_set is from claim_values().
  void add_transform(int64_t step, int param_set, ParamTransform transform);
  /// Adds a note, a warning or a fault at the current modifier's place.
  void note(const std::string& message);
  void warn(const std::string& message);
  void fault(const std::string& message);
  /// Adds a fault with its own place.
  void fault(const Fault& fault) { faults_->add(fault); }
  /// Adds a note that a key is missing and which value is used instead, once per tag.
  void note_default(std::string_view key, std::string_view value);

 private:
  struct ValueClaim {
    const Modifier* modifier;
    StepRange steps;
    std::vector<int64_t> params;
  };

  const Modifier& modifier(int index) const {
    return *recipe_.modifiers()[static_cast<size_t>(index)];
  }
  const Modifier& now() const { return modifier(current_); }
  int index_of(const Modifier* modifier) const;
  const std::string& name_of_param(int64_t param) const;

  enum class Selects { kPrunable, kAny };
  std::vector<int64_t> resolve(const Selection& selection, Selects what);
  int add_param_set(const std::vector<int64_t>& params, const std::string& text);
  void note_logged(const std::vector<int64_t>& params);
  void note_selected(const Selection& selection, const std::vector<int64_t>& params, Selects what);
  void require_known(const ParamGroups& groups);
  double rate_in_force(int64_t step, int group) const;
  void warn_of_fall(const std::vector<int64_t>& params, const GradualClaim& claim);
  void warn_of_last_groups(const std::vector<int64_t>& params, const GradualPruning& pruning);

  void describe_current();
  void compile_all();
  void compile_deferred();
  void add_trainable_changes();
  void check_quantization();

  const Recipe& recipe_;
  const TimelineInputs& inputs_;
  Diagnostics* faults_;
  StepConverter converter_;
  size_t num_updates_ = 0;
  int current_ = 0;
  struct Deferred {
    int64_t step;
    int modifier;
    std::function<void()> compile;
  };
  std::vector<Deferred> deferred_;
  std::set<std::string> defaults_noted_;
  Timeline timeline_;
  PruningClaims pruning_;
  GroupClaims rates_, decays_;
  TrainableClaims trainable_;
  QuantizationClaims quantization_;
  std::vector<ValueClaim> values_;
};

}  // namespace lockstep::recal
