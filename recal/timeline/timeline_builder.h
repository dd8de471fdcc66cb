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

/// The parameters that a modifier names, as it wants them read.
struct Selection {
  const ParamSelector& params;
  bool strict = true;  ///< an entry that selects nothing is a fault, not a warning
};

/// How a gradual modifier prunes.
struct GradualPruning {
  StepRange steps;
  double init_sparsity = 0;
  double final_sparsity = 0;
  bool leave_enabled = true;
  MaskRule mask_rule;
  bool momentum_buffer_reset = false;
};

/// What a modifier sees while a timeline is compiled: conversions, claims (who may write what) and
/// the list of actions. Modifiers compile in recipe order.
class TimelineBuilder {
 public:
  TimelineBuilder(const Recipe& recipe, const TimelineInputs& inputs, Diagnostics* faults);
  Timeline build();

  const StepConverter& converter() const { return converter_; }
  const TimelineInputs& inputs() const { return inputs_; }
  int64_t step_of(const TrainTime& moment) const { return converter_.step_of(moment); }
  /// The steps of a window with both bounds. Nothing and a fault if its end does not come after its
  /// start; first == last where it is shorter than a step.
  std::optional<StepRange> steps_of(const Window& window);
  /// StepConverter::updates; too many are a fault.
  std::vector<PeriodicUpdate> updates(const Window& window, const Period& period, int64_t end_step);

  /// The current modifier writes the rate of these groups at these steps; a fault if another does,
  /// or the optimizer's own decay, or if a run has no such group. Without a model the latter is
  /// only a note.
  void claim_learning_rate(const ParamGroups& groups, StepRange steps);
  void claim_weight_decay(const ParamGroups& groups, int64_t step);
  /// Calls `compile` for the current modifier once all have contributed, those of earlier steps
  /// first: for what depends on what others do before `step`.
  void defer(int64_t step, std::function<void()> compile);
  /// The rates that these groups have just before `step`: one entry where they are equal. Only in
  /// what was deferred to `step`.
  std::vector<std::pair<ParamGroups, double>> rates_in_force(int64_t step,
                                                             const ParamGroups& groups) const;
  /// The current modifier prunes these parameters; a fault if another does. Returns the parameter
  /// set.
  int claim_gradual_pruning(const Selection& selection, const GradualPruning& pruning);
  /// The current modifier keeps these parameters' zeros from `first`, or where a gradual modifier
  /// listed earlier ends, to `last` or the end. Returns (step, parameter set); a fault if another
  /// constant modifier has one of them.
  std::vector<std::pair<int64_t, int>> claim_constant_pruning(const Selection& selection,
                                                              int64_t first,
                                                              std::optional<int64_t> last);
  /// The current modifier says whether these parameters are trained; with `exclusive` all others
  /// are the opposite. Adds the actions itself, at the end.
  void claim_trainable(const Selection& selection, StepRange steps, bool trainable, bool exclusive);
  /// Indexes of the layers of these names, or of all (null); none without a model. A name that is
  /// not there is a fault.
  std::vector<int64_t> resolve_layers(const ParamSelector* submodules);
  /// claim.layers are quantized; claim.modifier is filled in. Returns the parameter set of their
  /// weights, called `text` without a model.
  int claim_quantization(QuantizationClaim claim, const std::string& text);
  /// Any parameters; whose values the current modifier sets at these steps.
  int claim_values(const Selection& selection, StepRange steps);

  void add(int64_t step, ActionKind kind, double value, int param_set = -1);
  void add_for_groups(int64_t step, ActionKind kind, double value, const ParamGroups& groups);
  /// A learning rate that changes at every step, from first_step on.
  void add_formula(int64_t first_step, const LrSchedule& formula, const ParamGroups& groups);
  /// A change of values that the modifier brings along; the set is claim_values()'s.
  void add_transform(int64_t step, int param_set, ParamTransform transform);
  /// A note, warning or fault with the current modifier's place.
  void note(const std::string& message);
  void warn(const std::string& message);
  void fault(const std::string& message);
  /// A fault with a place of its own.
  void fault(const Fault& fault) { faults_->add(fault); }
  /// A note, once for all modifiers of the current one's tag, that a key is missing and what is
  /// taken instead.
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
