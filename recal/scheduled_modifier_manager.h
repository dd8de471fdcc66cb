#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/params.h"
#include "base/state_list.h"
#include "base/yaml_document.h"
#include "dist/communicator.h"
#include "recal/mask_table.h"
#include "recal/recipe.h"
#include "recal/timeline.h"

namespace lockstep::recal {

/// What apply_due() did.
struct Applied {
  double learning_rate = 0;  ///< for this step's update
  bool masks_changed = false;
  std::vector<int64_t> changed_params;  ///< indexes in the parameter table, ascending
  int64_t num_mask_updates = 0;         ///< masks computed, changed or not
};

/// Zeros of one parameter, counted in its weights.
struct ParamSparsity {
  std::string name;
  int64_t num_weights = 0;
  int64_t num_pruned = 0;  ///< by its mask
  int64_t num_zeros = 0;   ///< exact zeros, pruned or by chance
};

/// The recipe at work, as the trainer uses it:
///
///   attach(...)                        once, with the model's parameters; then compare
///   timeline().digest() over ranks restore state(), then restored()   if the run goes on from a
///   save apply_due(step), forward, backward, optimizer, enforce()          each step
///   finalize(step)                     once, where training ends by itself (not where it is
///   stopped to go on later)
///
/// It holds no state but the masks: with masks restored, everything follows from the step. Same
/// calls on all ranks; one thread at a time. `control` is the control communicator; it is used only
/// at steps that compute masks.
class ScheduledModifierManager {
 public:
  explicit ScheduledModifierManager(Recipe recipe) : recipe_(std::move(recipe)) {}
  /// Reads a recipe file. Throws Error(kConfig) with all its faults, Error(kInputMissing) if it is
  /// not there.
  static ScheduledModifierManager from_yaml(const std::string& path);

  /// Compiles the timeline and makes the masks. Faults of the recipe against this model go to
  /// `faults`; the manager may then not be used. The parameters' tensors are kept (their memory may
  /// be moved by set_data later). `max_steps`: a cap of the run, for warnings. Throws
  /// Error(kConfig) if the model has no parameters, Error(kBug) at a second call.
  void attach(const ParamTable& params, int64_t steps_per_epoch, double base_learning_rate,
              Faults* faults, std::optional<int64_t> max_steps = std::nullopt);

  /// Applies what is due before the forward pass of `step`: new masks are computed on each rank,
  /// compared over all of them and applied to the weights. Throws Error(kDisagree).everywhere()
  /// naming tensor and ranks if masks differ.
  Applied apply_due(int64_t step, dist::Communicator& control);

  /// Zeroes the pruned weights; call after each optimizer update. Local, cheap, without allocation
  /// on the CPU.
  void enforce() { masks_.enforce(); }

  /// Applies what is due at the end of training after `step` updates (a closing sparsity whose
  /// end_epoch is the end of the run) and leaves exact zeros in the weights.
  Applied finalize(int64_t step, dist::Communicator& control);

  /// The masks, under `_lockstep/masks/`.
  StateList state() { return masks_.state(); }
  /// Call after state() was written by a restore: compares the masks over the ranks (throws as
  /// apply_due) and enforces.
  void restored(dist::Communicator& control);

  const Recipe& recipe() const { return recipe_; }
  /// Throws Error(kBug) before attach().
  const Timeline& timeline() const;
  const MaskTable& masks() const { return masks_; }

  double learning_rate_at(int64_t step) const { return timeline().learning_rate_at(step); }
  double target_sparsity_at(int64_t step) const { return timeline().target_sparsity_at(step); }
  /// Pruned fraction of the covered parameters' weights, by the masks; 0 if none is covered. Costs
  /// no pass.
  double covered_sparsity() const;
  /// The same over all prunable weights of the model.
  double sparsity() const;
  /// Per prunable parameter, in the model's order; one pass over its weights.
  std::vector<ParamSparsity> measure() const;

  int64_t min_epochs() const { return timeline().min_epochs(); }
  std::optional<int64_t> max_epochs() const { return timeline().max_epochs(); }
  std::optional<int64_t> total_steps() const { return timeline().total_steps(); }

 private:
  void apply(const Action& action, Applied* applied);
  /// Compares the masks of these parameters over the ranks.
  void require_equal_masks(std::string_view what, const std::vector<int64_t>& params,
                           dist::Communicator& control);

  Recipe recipe_;
  std::optional<Timeline> timeline_;
  MaskTable masks_;
  ParamTable prunable_;  // all of the model's prunable parameters, covered or not
  int64_t num_prunable_weights_ = 0;
  bool masks_counted_ = false;  // a restore may have written them since attach
};

}  // namespace lockstep::recal
