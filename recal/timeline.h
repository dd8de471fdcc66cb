#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml_document.h"
#include "recal/param_selector.h"
#include "recal/recipe.h"

namespace lockstep::recal {

enum class ActionKind {
  kSetLearningRate,  ///< value: the rate from this step on
  kPrune,            ///< value: sparsity of each parameter of the set from this step on
  kKeepZeros,        ///< masks of the set are taken from the weights' zeros
  kRelease,          ///< masks of the set are no longer enforced
};
std::string_view name_of(ActionKind kind);

/// What happens before the forward pass of `step` (0-based; the first training step is step 0).
struct Action {
  int64_t step = 0;
  ActionKind kind = ActionKind::kSetLearningRate;
  double value = 0;
  int modifier = 0;    ///< index in Timeline::modifiers()
  int param_set = -1;  ///< index in Timeline::param_sets(); -1: none
};

/// One modifier as compiled, for people.
struct ModifierEntry {
  std::string tag;
  std::string summary;
  std::string place;  ///< file:line
  Window window;      ///< epochs
  std::optional<int64_t> start_step, end_step;
};

/// Parameters that an action works on together.
struct ParamSet {
  std::vector<int64_t>
      params;  ///< indexes in the parameter table, ascending; empty if no table was given
  std::vector<std::string> names;  ///< their names, or the selector as written
  int64_t num_weights = 0;         ///< over all of them; 0 if unknown
};

struct TimelineInputs {
  int64_t steps_per_epoch = 1;
  double base_learning_rate = 0;  ///< the optimizer's rate at start-up
  /// Nothing: no model is known (`lockstep plan` of a bare recipe); params are then not checked.
  std::optional<std::vector<ParamInfo>> params;
  /// Steps that the run will make if the recipe does not decide it (train.max_steps). Used for
  /// warnings only.
  std::optional<int64_t> max_steps;
};

/// A recipe compiled for one run: everything that changes, by step. A pure function of its inputs,
/// equal on all ranks (compare digest()), so a resumed run cannot differ.
class Timeline {
 public:
  /// Faults that need the model or the steps per epoch (no such layer, two writers of one thing) go
  /// to `faults`; the timeline may only be used if there is none.
  static Timeline compile(const Recipe& recipe, const TimelineInputs& inputs, Faults* faults);

  /// Sorted by step, then by place in the recipe.
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

  double learning_rate_at(int64_t step) const;
  /// True if some modifier writes the learning rate; a decay beside it must then be `fixed`.
  bool sets_learning_rate() const { return !learning_rates_.empty(); }
  /// Scheduled sparsity of one modifier's parameters; 0 before its first update, nothing if it
  /// schedules none. A release does not change it.
  std::optional<double> target_sparsity_at(int64_t step, int modifier) const;
  /// Scheduled sparsity over all parameters with a schedule, weighted by their size (equally if
  /// sizes are unknown).
  double target_sparsity_at(int64_t step) const;

  /// Steps of the whole run: ceil(largest end x steps per epoch); nothing if no modifier has an
  /// end.
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

  /// What a user should know but may want: `file:line: ...`.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Facts worth a log line, such as which modifier widens the run.
  const std::vector<std::string>& notes() const { return notes_; }

  /// Canonical form, one line an action: equal texts mean equal schedules.
  std::string canonical_text() const;
  /// SHA-256 of canonical_text().
  std::string digest() const;

 private:
  friend class TimelineBuilder;
  Timeline() = default;

  int64_t steps_per_epoch_ = 1;
  double base_learning_rate_ = 0;
  int64_t min_epochs_ = 0;
  std::optional<int64_t> max_epochs_, total_steps_;
  std::vector<ModifierEntry> modifiers_;
  std::vector<ParamSet> param_sets_;
  std::vector<Action> actions_;
  std::vector<Action> learning_rates_;       // those of actions_, for look-up
  std::vector<std::vector<Action>> prunes_;  // by modifier
  std::vector<std::string> warnings_, notes_;
};

}  // namespace lockstep::recal
