#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/tensors/param_info.h"
#include "base/yaml/yaml_document.h"
#include "recal/schedule/param_selector.h"
#include "recal/schedule/recipe.h"
#include "recal/schedule/timeline.h"
#include "recal/schedule/train_time.h"

/// Compilation of modifiers to a timeline, and the checks for conflicts between modifiers.
namespace lockstep::recal {

/// Conflict check for one quantity of the parameter groups: at each step a group has one writer.
class GroupClaims {
 public:
  /// quantity: name for messages, such as "the learning rate".
  GroupClaims(std::string quantity, int64_t steps_per_epoch)
      : quantity_(std::move(quantity)), steps_per_epoch_(steps_per_epoch) {}

  /// Adds a claim. Adds a fault at the writer's place if another one writes one of the groups at
  /// one of the steps. The writer must outlive this object.
  void add(const Modifier& writer, const ParamGroups& groups, StepRange steps, Diagnostics* faults);

 private:
  struct Claim {
    const Modifier* writer;
    int group;
    StepRange steps;
  };
  std::string quantity_;
  int64_t steps_per_epoch_;
  std::vector<Claim> claims_;
};

/// Pruning of one parameter over the whole run.
struct PruningClaim {
  /// Modifier that releases the mask, else the last one that prunes.
  const Modifier* pruner = nullptr;
  std::optional<StepRange> pruning;  ///< from the first to the last step at which the mask grows
  std::optional<int64_t> released;   ///< step at which the mask is released; nullopt: never
};

/// Pruning by one gradual modifier.
struct GradualPruning {
  StepRange steps;
  double init_sparsity = 0;   ///< from the first step
  double final_sparsity = 0;  ///< from the end on
  bool leave_enabled = true;  ///< masks are kept after the end
  MaskRule mask_rule;
  ScoreRule score;
  bool momentum_buffer_reset = false;  ///< zero the momentum with each new mask
};

/// Conflict check of pruning: at each step at most one modifier prunes a parameter. Gradual ones
/// may follow one another. One that keeps zeros begins at the end of those listed before it.
class PruningClaims {
 public:
  /// Adds a claim. Returns false, with a fault at the pruner's place, if another one has the
  /// parameter at one of the steps. `pruner` must outlive this object.
  bool add_gradual(const Modifier& pruner, int64_t param, const std::string& name,
                   const GradualPruning& claim, Diagnostics* faults);
  /// Adds a claim. Returns the step from which the zeros are kept: `first`, or the end of earlier
  /// gradual modifiers if that is later. Returns nullopt, with a fault, on a conflict. last: the
  /// step of the release.
  std::optional<int64_t> add_constant(const Modifier& pruner, int64_t param,
                                      const std::string& name, int64_t first,
                                      std::optional<int64_t> last, Diagnostics* faults);

  /// Earlier modifier that leaves the parameter sparser than `claim` begins; nullopt if none does.
  struct Fall {
    const Modifier* before = nullptr;
    double final_sparsity = 0;
  };
  std::optional<Fall> fall_before(int64_t param, const GradualPruning& claim) const;

  /// Pruning of a parameter; nullopt if nothing prunes it.
  std::optional<PruningClaim> find(int64_t param) const;

 private:
  struct Entry {
    const Modifier* pruner = nullptr;
    bool is_gradual = false;  ///< true: chooses what is pruned; false: keeps zeros
    StepRange steps;          ///< end: INT64_MAX if it has no end
    double final_sparsity = 0;
    std::optional<int64_t> released;
  };
  /// First entry of the parameter that acts at one of the steps; null if none does.
  const Entry* overlapping(int64_t param, StepRange steps) const;
  /// True if some entry has the mask at the step.
  static bool is_held(const std::vector<Entry>& entries, int64_t step);

  std::map<int64_t, std::vector<Entry>> claims_;  // by parameter
};

/// Claim of one QuantizationModifier. Observers and batch normalisation are switched for the whole
/// model.
struct QuantizationClaim {
  const Modifier* modifier = nullptr;
  int64_t first_step = 0;
  std::vector<int64_t> layers;  ///< ascending indexes in TimelineInputs::layers
  bool per_channel = true;
  std::optional<int64_t> observers_off, batch_norm_frozen;  ///< steps
};

/// Conflict check of the modifiers that quantize layers.
class QuantizationClaims {
 public:
  /// References `layers`, which must outlive this object.
  explicit QuantizationClaims(const std::vector<LayerInfo>& layers) : layers_(layers) {}

  /// Adds a claim. Adds a fault at the modifier's place if another one quantizes one of the layers
  /// or has other settings. The modifier must outlive this object.
  void add(QuantizationClaim claim, Diagnostics* faults);

  /// Compares the claims with those of pruning. Call it after all pruning modifiers have claimed.
  /// Adds a fault if a quantized weight's mask is released before the run's end (`total_steps`, if
  /// known). Returns warnings: (modifier, text).
  struct Warning {
    const Modifier* modifier;
    std::string text;
  };
  std::vector<Warning> check_pruning(const PruningClaims& pruning,
                                     std::optional<int64_t> total_steps, Diagnostics* faults) const;

  bool per_channel() const { return claims_.empty() || claims_.front().per_channel; }

 private:
  const std::vector<LayerInfo>& layers_;
  std::vector<QuantizationClaim> claims_;
};

/// Change of trainability of some parameters, at the start or the end of a claim.
struct TrainableChange {
  int64_t step = 0;
  bool trainable = true;
  const Modifier* modifier = nullptr;
  std::vector<int64_t> params;  ///< ascending, at least one
};

/// Conflict check of the modifiers that freeze and unfreeze parameters. A parameter without a claim
/// is trained, unless it is frozen at the start. Claims on one parameter may overlap if they agree.
class TrainableClaims {
 public:
  /// names: all parameters of the model. frozen_at_start: indexes, ascending.
  TrainableClaims(std::vector<std::string> names, std::vector<int64_t> frozen_at_start)
      : names_(std::move(names)), frozen_at_start_(std::move(frozen_at_start)) {}

  /// Adds a claim. Adds a fault at the modifier's place if another one contradicts it for some
  /// parameter and step. steps.end may be INT64_MAX (no end). `modifier` must outlive this object.
  void add(const Modifier& modifier, const std::vector<int64_t>& params, StepRange steps,
           bool trainable, Diagnostics* faults);

  /// All changes by step, ends before starts. Adds a fault if a change leaves nothing to train.
  std::vector<TrainableChange> changes(Diagnostics* faults) const;

 private:
  struct Claim {
    const Modifier* modifier;
    std::vector<int64_t> params;
    StepRange steps;
    bool trainable;
  };
  bool is_trainable(int64_t param, int64_t step) const;
  void add_ends(std::vector<TrainableChange>* changes) const;
  bool trains_some(int64_t step) const;

  std::vector<std::string> names_;
  std::vector<int64_t> frozen_at_start_;
  std::vector<Claim> claims_;
};

/// Parameters that a modifier names, and the keys that go with them.
struct Selection {
  ParamSelector params;
  bool strict = true;  ///< an entry without a match is a fault, else a warning
  ParamLogs logs = ParamLogs::kByDefault;
};

/// Value that changes along a curve over a window.
struct GradualChange {
  Window window;
  Period period;           ///< from one update to the next
  std::string inter_func;  ///< recal/schedule/train_time.h
  double first = 0, last = 0;
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
  /// Claims the loss at these steps for the current modifier, to add a teacher's part to it.
  void claim_loss(StepRange steps) { losses_.add(now(), {}, steps, faults_); }
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
  /// Bytes of the statistics of second-order pruning of a set, over all ranks.
  double fisher_bytes(int param_set, const FisherOptions& options) const;
  /// Returns a copy of a parameter set that also resets the momentum.
  int with_momentum_reset(int param_set);
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
  /// Adds an action at each update of the change, and one with the last value at its end. Update k
  /// happens at the first step at or after its moment, with the curve's value at that moment.
  /// Returns the number of updates before the end.
  size_t add_gradual(ActionKind kind, int param_set, const GradualChange& change);
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
  void warn_of_fall(const std::vector<int64_t>& params, const GradualPruning& claim);
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
  GroupClaims rates_, decays_, losses_;
  TrainableClaims trainable_;
  QuantizationClaims quantization_;
  std::vector<ValueClaim> values_;
};

}  // namespace lockstep::recal
