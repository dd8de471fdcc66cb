#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/tensors/layer_info.h"
#include "base/yaml/yaml_document.h"
#include "recal/masks/mask_kind.h"
#include "recal/params/param_groups.h"
#include "recal/params/param_selector.h"
#include "recal/timeline/action.h"
#include "recal/timeline/lr_schedule.h"
#include "recal/timeline/recipe.h"

namespace lockstep::recal {

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
  /// Range of the actions due at one step.
  struct Range {
    const Action* first;
    const Action* last;
    const Action* begin() const { return first; }
    const Action* end() const { return last; }
    bool empty() const { return first == last; }
  };
  Range due_at(int64_t step) const;

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
  std::vector<Action> trainables_, quantizes_;
  std::vector<bool> trainable_at_start_;  // by parameter
  std::string frozen_names_;              // names of the others
  std::vector<int64_t> layer_of_weight_;  // layer of each parameter; -1: none
  bool quantizes_per_channel_ = true;
  std::vector<bool> logged_;  // by parameter
  std::vector<std::string> warnings_, notes_;
};

}  // namespace lockstep::recal
