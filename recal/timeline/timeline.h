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

/// One modifier as compiled, for people.
struct ModifierEntry {
  std::string tag;
  std::string summary;
  std::string place;  ///< file:line
  Window window;      ///< as written
  std::optional<int64_t> start_step, end_step;
  ParamLogs param_logs = ParamLogs::kByDefault;
  bool works_on_masks = false, sets_trainable = false, sets_values = false;  ///< by its actions
  std::optional<int64_t> quantizes_from;  ///< the step of its first kQuantize action
};

/// Parameters that an action works on together.
struct ParamSet {
  std::vector<int64_t>
      params;  ///< indexes in the parameter table, ascending; empty if no table was given
  std::vector<std::string> names;  ///< their names, or the selector as written
  int64_t num_weights = 0;         ///< over all of them; 0 if unknown
  MaskRule mask_rule;              ///< kPrune: which of them go together
  /// kPrune: the optimizer's moments of these parameters become 0 with each new mask.
  bool momentum_buffer_reset = false;
};

/// Fake quantization at one step.
struct Quantization {
  bool on = false;
  bool observers_on = false;       ///< ranges of activations still follow the data
  bool batch_norm_frozen = false;  ///< running statistics are used and no longer updated
  std::vector<int64_t> layers;     ///< ascending indexes in TimelineInputs::layers
  bool per_channel = true;         ///< weights: a scale per output channel, not one per tensor
};

struct TimelineInputs {
  int64_t steps_per_epoch = 1;
  double base_learning_rate = 0;  ///< the optimizer's rate at start-up
  /// Nothing: no model is known (`lockstep plan` of a bare recipe); params are then not checked.
  std::optional<std::vector<ParamInfo>> params;
  /// Cap of the run's steps (train.max_steps): for warnings, and the run's end where a modifier
  /// lasts to it and none names it.
  std::optional<int64_t> max_steps;
  /// Parameters that are not trained before a modifier says so: indexes, ascending. Only read if
  /// `params` is given.
  std::vector<int64_t> frozen_at_start = {};
  /// Names of parameters outside `params` that the network itself froze: for faults.
  std::vector<std::string> frozen_in_constructor = {};
  /// Layers that can be quantized, in the model's order. Only read if `params` is given.
  std::vector<LayerInfo> layers;
  std::string optimizer_type = {};  ///< for warnings; empty: unknown
  /// The optimizer's own decay of the rate, which no modifier of the rate may stand beside.
  std::string learning_rate_decay_type = "fixed";
};

/// A recipe compiled for one run: everything that changes, by step. A pure function of its inputs,
/// equal on all ranks (compare digest()), so a resumed run cannot differ.
class Timeline {
 public:
  /// Diagnostics that need the model or the steps per epoch (no such layer, two writers of one
  /// thing) go to `faults`; the timeline may only be used if there is none.
  static Timeline compile(const Recipe& recipe, const TimelineInputs& inputs, Diagnostics* faults);

  /// Sorted by step, then in the order in which they act, then by place in the recipe. Acting
  /// order: rates, decays, values of parameters, masks (prune, release, keep zeros), trainability,
  /// quantization.
  const std::vector<Action>& actions() const { return actions_; }
  /// The actions due at `step`.
  struct Range {
    const Action* first;
    const Action* last;
    const Action* begin() const { return first; }
    const Action* end() const { return last; }
    bool empty() const { return first == last; }
  };
  Range due_at(int64_t step) const;

  /// Rate of a group; the optimizer's at start-up where no modifier has written it yet.
  double learning_rate_at(int64_t step, int group = kWeightGroup) const;
  /// What set the rate or decay that holds for a group at this step; null: no modifier has yet.
  const Action* learning_rate_setter(int64_t step, int group) const;
  const Action* weight_decay_setter(int64_t step, int group) const;
  /// L2 weight decay of a group; nothing: no modifier has written it yet, the optimizer's holds.
  std::optional<double> weight_decay_at(int64_t step, int group) const;
  /// By parameter, in the order of TimelineInputs::params; as at the start where no modifier says
  /// otherwise. Empty if no model was given.
  std::vector<bool> trainable_at(int64_t step) const;
  Quantization quantization_at(int64_t step) const;
  /// True if some modifier writes the learning rate; a decay beside it must then be `fixed`.
  bool sets_learning_rate() const;
  /// Scheduled sparsity of one modifier's parameters; 0 before its first update, nothing if it
  /// schedules none. A release does not change it.
  std::optional<double> target_sparsity_at(int64_t step, int modifier) const;
  /// Scheduled sparsity over all parameters with a schedule, weighted by their size (equally if
  /// sizes are unknown); where several modifiers prune one after another, the last that has acted.
  double target_sparsity_at(int64_t step) const;
  /// True if a pruning modifier of this parameter asks for its own summaries (`log_types`).
  bool logs_param(int64_t param) const;
  /// The parameters that a modifier's actions work on: indexes, ascending; empty without a model.
  const std::vector<int64_t>& params_of(int modifier) const {
    return params_of_[static_cast<size_t>(modifier)];
  }
  /// The value to which a modifier has set its parameters by `step`; nothing before it does, and
  /// where it sets none.
  std::optional<double> param_value_at(int64_t step, int modifier) const;

  /// Steps of the whole run, by the largest end of a modifier; by max_steps where one lasts to the
  /// run's end and none names it; nothing if no modifier has an end.
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

  /// What a user should know but may want: `file:line: ...`.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Facts worth a log line, such as which modifier widens the run.
  const std::vector<std::string>& notes() const { return notes_; }

  /// Canonical form, one line an entry, sorted: schedules are equal if and only if these texts are.
  /// Stored with each save; timeline_changes() compares two of them for people.
  std::string canonical_text() const;
  /// SHA-256 of canonical_text().
  std::string digest() const;

 private:
  friend class TimelineBuilder;
  Timeline() = default;
  /// Sorts the actions and prepares the look-ups.
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
  // Those of actions_, for look-up: by group, by group, by modifier, all.
  std::array<std::vector<Action>, kNumParamGroups> learning_rates_, weight_decays_;
  std::vector<std::vector<Action>> prunes_, values_;
  std::vector<std::vector<int64_t>> params_of_;  // by modifier
  /// Parameters that the same modifiers prune, and their size (1 if it is unknown).
  struct PrunedShare {
    std::vector<int> modifiers;
    double num_weights = 0;
  };
  std::vector<PrunedShare> pruned_shares_;
  std::vector<Action> trainables_, quantizes_;
  std::vector<bool> trainable_at_start_;  // by parameter
  std::string frozen_names_;              // those that are not
  std::vector<int64_t> layer_of_weight_;  // by parameter: its layer, -1: none
  bool quantizes_per_channel_ = true;
  std::vector<bool> logged_;  // by parameter
  std::vector<std::string> warnings_, notes_;
};

}  // namespace lockstep::recal
