#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensors/param_info.h"
#include "base/yaml/yaml_document.h"
#include "recal/masks/mask_kind.h"
#include "recal/schedule/param_selector.h"
#include "recal/schedule/recipe.h"
#include "recal/schedule/train_time.h"

namespace at {
class Tensor;
}

/// Timeline: a recipe compiled for one run, with its actions, rates, warnings and comparison.
namespace lockstep::recal {

enum class ActionKind {
  kSetLearningRate,  ///< value: the group's rate from this step on; for a formula its first one
  kSetWeightDecay,   ///< value: the group's decay from this step on
  kPrune,            ///< value: sparsity of each parameter of the set from this step on
  kKeepZeros,        ///< masks of the set are made from the weights' zeros
  kRelease,          ///< masks of the set are no longer enforced
  kSetTrainable,     ///< value 1: the set is trained from this step on; 0: it is not
  kSetParam,         ///< value: new value of every element of the set, once, before this step
  kTransform,        ///< applies a function to each parameter of the set, once, before this step
  kQuantize,         ///< the layers with these weights are fake-quantized from this step on
  kFreezeObservers,  ///< ranges of quantization no longer change
  kFreezeBatchNorm,  ///< running statistics of batch normalisation no longer change
  kStopDistilling,   ///< the loss is that of the task alone from this step on
  kSetTemperature,   ///< value: temperature of distillation from this step on
  kDistill,          ///< value: hardness, the teacher's share of the loss, from this step on
};

/// Properties of a kind of action: one row of a table.
struct ActionTraits {
  ActionKind kind;
  std::string_view name;  ///< in the canonical text: must not change
  /// Order of actions within a step. Values come before the masks computed from them, and a release
  /// comes before a mask that replaces it.
  int order = 0;
  bool is_on_masks = false;
  bool is_on_values = false;
  bool is_on_quantization = false;

  bool is_on_loss() const {
    return kind == ActionKind::kStopDistilling || kind == ActionKind::kSetTemperature ||
           kind == ActionKind::kDistill;
  }
};
const ActionTraits& traits_of(ActionKind kind);

/// Change that happens before the forward pass of `step` (the first training step is step 0).
struct Action {
  int64_t step = 0;
  ActionKind kind = ActionKind::kSetLearningRate;
  double value = 0;
  int modifier = 0;        ///< index in Timeline::modifiers()
  int param_set = -1;      ///< index in Timeline::param_sets(); -1: none
  int group = kAllGroups;  ///< rates and decays: kWeightGroup, kOtherGroup
                           ///< (base/tensors/param_info.h) or all; without a model also groups
                           ///< that do not exist in a run
  int formula = -1;        ///< index in Timeline::rate_formulas(): the rate follows it at every
                           ///< step and starts with `value`; -1: `value` holds
  int transform = -1;      ///< kTransform: index in Timeline::transforms()
};

/// User-defined change of parameter values, for modifiers whose effect no other kind of action has.
struct ParamTransform {
  std::string name;  ///< includes its numbers: different names make different timelines
  /// Writes new values of one parameter, in place. Must give the same bits on every rank.
  std::function<void(at::Tensor& values, int64_t step)> apply;
};

/// Computes cos(pi * t) for t in [0, 1], within 2^-52. Uses additions and multiplications only,
/// because C libraries choose code by processor, which may change the last bit.
double cos_pi(double t);

/// Value that changes at every step, such as a learning rate. t goes from 0 to 1 over the window,
/// or over each cycle:
///
///   linear   first + (last - first) * t
///   cosine   last + (first - last) * (1 + cos(pi * t)) / 2     (Loshchilov & Hutter 2017,
///            arXiv:1608.03983, eq. 5, where it restarts each cycle)
///
/// Pure function of the step: equal on all ranks, and the same after a resume.
struct LrSchedule {
  enum class Shape { kLinear, kCosine };
  Shape shape = Shape::kLinear;
  double first = 0;                  ///< value at t = 0
  double last = 0;                   ///< value at t = 1
  double begin = 0, end = 0;         ///< start and end of the window in steps, not rounded
  int64_t last_step = 0;             ///< first step at which it no longer changes
  std::optional<Recurrence> cycles;  ///< nullopt: no repetition
  int64_t steps_per_epoch = 1;

  /// Value at a step. Before the window: `first`. After it: `last`, or with cycles the value at the
  /// window's last step.
  double at(int64_t step) const;
  /// Text such as "cosine from 0.1 to 0.001, again every 2 epochs".
  std::string text() const;
  /// Text of everything that at() depends on, exactly.
  std::string canonical_text() const;

 private:
  double fraction_at(int64_t step) const;
};

/// Compiled modifier, described for people.
struct ModifierEntry {
  std::string tag;
  std::string summary;
  std::string place;  ///< file:line
  Window window;      ///< as written
  std::optional<int64_t> start_step, end_step;
  ParamLogs param_logs = ParamLogs::kByDefault;
  bool works_on_masks = false, sets_trainable = false, sets_values = false;  ///< from its actions
  std::optional<int64_t> quantizes_from;  ///< step of its first kQuantize action
};

/// Parameters on which an action works together.
struct ParamSet {
  std::vector<int64_t>
      params;  ///< indexes in the parameter table, ascending; empty without a table
  std::vector<std::string> names;  ///< names of the parameters, or the selector as written
  int64_t num_weights = 0;         ///< sum over all parameters; 0 if unknown
  MaskRule mask_rule;              ///< kPrune: groups that are pruned together
  ScoreRule score;                 ///< kPrune: order in which they are pruned
  /// kPrune: zero the optimizer's moments of these parameters with each new mask.
  bool momentum_buffer_reset = false;
};

/// State of fake quantization at one step.
struct Quantization {
  bool on = false;
  bool observers_on = false;       ///< input ranges still follow the data
  bool batch_norm_frozen = false;  ///< running statistics are used and no longer updated
  std::vector<int64_t> layers;     ///< ascending indexes in TimelineInputs::layers
  bool per_channel = true;         ///< weights: one scale per output channel, not per tensor
};

/// Distillation at one step: loss = (1 - hardness) * task loss + hardness * temperature^2 * KL
/// divergence of the outputs' distribution from the teacher's, both softened by the temperature.
struct Distillation {
  double hardness = 0;  ///< in [0, 1]
  double temperature = 1;
};

/// Teacher of a run, for recipes that distil.
enum class TeacherChoice {
  kNone,      ///< a recipe that distils is refused
  kDisabled,  ///< the recipe's distillation is left out
  kGiven,
  kNoLoss,  ///< the loss belongs to the caller's own loop: a recipe that distils is refused
};

struct TimelineInputs {
  int64_t steps_per_epoch = 1;
  double base_learning_rate = 0;  ///< initial rate of the optimizer
  /// Parameters of the model. nullopt: no model is known (`lockstep plan`); no checks then.
  std::optional<std::vector<ParamInfo>> params;
  /// Limit of the run's steps (train.max_steps), for warnings. Also the run's end if a modifier
  /// refers to the end and none names it.
  std::optional<int64_t> max_steps;
  /// Parameters that are frozen until a modifier changes that: indexes, ascending. Only read if
  /// `params` is given.
  std::vector<int64_t> frozen_at_start = {};
  /// Names of parameters outside `params` that the network itself froze: for faults.
  std::vector<std::string> frozen_in_constructor = {};
  /// Layers that can be quantized, in the model's order. Only read if `params` is given.
  std::vector<LayerInfo> layers;
  std::string optimizer_type = {};  ///< for warnings; empty: unknown
  /// Learning rate decay of the optimizer. It must be `fixed` if a modifier sets the rate.
  std::string learning_rate_decay_type = "fixed";
  TeacherChoice teacher = TeacherChoice::kNone;  ///< only read if `params` is given
};

/// Recipe compiled for one run: all changes, by step. A pure function of its inputs, equal on all
/// ranks (compare digest()), so a resumed run cannot differ.
class Timeline {
 public:
  /// Compiles a recipe. Faults that need the model or the steps per epoch go to `faults`: no such
  /// layer, two writers of one quantity. The timeline may only be used without faults.
  static Timeline compile(const Recipe& recipe, const TimelineInputs& inputs, Diagnostics* faults);

  /// All actions, sorted by step, then by order of action, then by position in the recipe. Order of
  /// action: rates, decays, parameter values, masks (prune, release, keep zeros), trainability,
  /// quantization.
  const std::vector<Action>& actions() const { return actions_; }
  /// Returns the actions due at one step.
  std::span<const Action> due_at(int64_t step) const;
  bool has(ActionKind kind) const;

  /// Learning rate of a group; the optimizer's initial rate if no modifier has set it yet.
  double learning_rate_at(int64_t step, int group = kWeightGroup) const;
  /// Action that set the rate or decay of a group at this step; null if no modifier has yet.
  const Action* learning_rate_setter(int64_t step, int group) const;
  const Action* weight_decay_setter(int64_t step, int group) const;
  /// L2 weight decay of a group; nullopt if no modifier has set it yet and the optimizer's holds.
  std::optional<double> weight_decay_at(int64_t step, int group) const;
  /// Trainable flags by parameter, in the order of TimelineInputs::params. Initial values hold
  /// where no modifier has changed them. Empty without a model.
  std::vector<bool> trainable_at(int64_t step) const;
  Quantization quantization_at(int64_t step) const;
  /// nullopt: the loss is that of the task alone.
  std::optional<Distillation> distillation_at(int64_t step) const;
  /// True if some modifier sets the learning rate. The optimizer's decay must then be `fixed`.
  bool sets_learning_rate() const;
  /// Scheduled sparsity of one modifier's parameters. 0 before its first update, nullopt if it has
  /// no schedule. A release does not change it.
  std::optional<double> target_sparsity_at(int64_t step, int modifier) const;
  /// Scheduled sparsity over all parameters with a schedule, weighted by their size (equally if
  /// sizes are unknown). If several modifiers prune a parameter in turn, the last that acted
  /// counts.
  double target_sparsity_at(int64_t step) const;
  /// True if a pruning modifier of this parameter asks for its own summaries (`log_types`).
  bool logs_param(int64_t param) const;
  /// Parameters on which a modifier's actions work: indexes, ascending; empty without a model.
  const std::vector<int64_t>& params_of(int modifier) const {
    return params_of_[static_cast<size_t>(modifier)];
  }
  /// Value to which a modifier has set its parameters by `step`. nullopt before its first action,
  /// and for modifiers that set no values.
  std::optional<double> param_value_at(int64_t step, int modifier) const;

  /// Length of the run in steps: the largest end of a modifier. max_steps if a modifier refers to
  /// the end and none names it. nullopt if no modifier has an end.
  std::optional<int64_t> total_steps() const { return total_steps_; }
  int64_t min_epochs() const { return min_epochs_; }  ///< smallest start, rounded down
  std::optional<int64_t> max_epochs() const { return max_epochs_; }  ///< largest end, rounded up

  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  double epoch_of(int64_t step) const {
    return static_cast<double>(step) / static_cast<double>(steps_per_epoch_);
  }
  double base_learning_rate() const { return base_learning_rate_; }
  const std::vector<ModifierEntry>& modifiers() const { return modifiers_; }
  const std::vector<ParamSet>& param_sets() const { return param_sets_; }
  const std::vector<LrSchedule>& rate_formulas() const { return rate_formulas_; }
  const std::vector<ParamTransform>& transforms() const { return transforms_; }

  /// Surprises that may be intended: `file:line: ...`.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Facts for the log, such as which modifier extends the run.
  const std::vector<std::string>& notes() const { return notes_; }

  /// Canonical form: one line per entry, sorted. Schedules are equal if and only if these texts
  /// are. Stored in each checkpoint; timeline_changes() compares two of them.
  std::string canonical_text() const;
  /// SHA-256 of canonical_text().
  std::string digest() const;

 private:
  friend class TimelineBuilder;
  Timeline() = default;
  /// Sorts the actions and prepares the look-up tables.
  void file_actions(const TimelineInputs& inputs);
  void file(const Action& action);
  void file_params(const TimelineInputs& inputs);
  void file_pruned_shares(const TimelineInputs& inputs);

  int64_t steps_per_epoch_ = 1;
  double base_learning_rate_ = 0;
  int64_t min_epochs_ = 0;
  std::optional<int64_t> max_epochs_, total_steps_;
  std::vector<ModifierEntry> modifiers_;
  std::vector<ParamSet> param_sets_;
  std::vector<Action> actions_;
  std::vector<LrSchedule> rate_formulas_;
  std::vector<ParamTransform> transforms_;
  // Copies of actions_, for look-up: by group, by group, by modifier, and all.
  std::array<std::vector<Action>, kNumParamGroups> learning_rates_, weight_decays_;
  std::vector<std::vector<Action>> prunes_, values_;
  std::vector<std::vector<int64_t>> params_of_;  // by modifier
  /// Set of parameters that the same modifiers prune, with its total size (1 each if unknown).
  struct PrunedShare {
    std::vector<int> modifiers;
    double num_weights = 0;
  };
  std::vector<PrunedShare> pruned_shares_;
  std::vector<Action> trainables_, quantizes_, distils_;
  std::vector<bool> trainable_at_start_;  // by parameter
  std::string frozen_names_;              // names of the others
  std::vector<int64_t> layer_of_weight_;  // layer of each parameter; -1: none
  bool quantizes_per_channel_ = true;
  std::vector<bool> logged_;  // by parameter
  std::vector<std::string> warnings_, notes_;
};

// Warnings and notes about a timeline as a whole.

/// True if a run of `last_step` updates executes the action. Actions on masks and values at
/// last_step are executed after the last update, in finalize.
bool is_reached(const Action& action, int64_t last_step);

/// Notes about modifiers that make the run longer than its EpochRangeModifier says.
std::vector<std::string> widening_notes(const Timeline& timeline);

/// Warnings about modifiers without effect, or that never reach their end, because the run or their
/// window is too short. max_steps: limit of the run.
std::vector<std::string> idle_warnings(const Timeline& timeline, std::optional<int64_t> max_steps);

/// Describes how a checkpoint's schedule differs from the current one, line by line; empty if
/// equal. Both texts are Timeline::canonical_text(). step: the checkpoint's step. Earlier entries
/// are marked as past. Past masks and values stay as the checkpoint's schedule made them. Rates,
/// decays, trainability and quantization follow the current schedule, since they are looked up by
/// step. After kMaxChangeLines entries only the number of further ones is given.
///
///   "steps per epoch: 23 in the checkpoint, 46 now"
///   "step 345 (past): prune of classifier.weight: 0.9 in the checkpoint, 0.8 now"
///   "step 400: learning_rate of all groups: 0.03 only now"
std::vector<std::string> timeline_changes(const std::string& saved_canonical,
                                          const std::string& now_canonical, int64_t step);

inline constexpr size_t kMaxChangeLines = 20;

}  // namespace lockstep::recal
