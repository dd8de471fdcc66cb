#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/tensors/layer_hook.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "base/yaml/yaml_document.h"
#include "dist/communicator.h"
#include "recal/masks/mask_table.h"
#include "recal/quantization/fake_quantizer.h"
#include "recal/timeline/recipe.h"
#include "recal/timeline/timeline.h"

namespace lockstep::recal {

/// A manager was called out of turn: the message names the call and what has to come first.
class StateError final : public Error {
 public:
  explicit StateError(const std::string& message) : Error(ExitCode::kBug, "recal", message) {}
};

/// What the recipe must know of the training that it changes.
struct AttachOptions {
  int64_t steps_per_epoch = 1;
  double base_learning_rate = 0;                        ///< the optimizer's at start-up
  std::string optimizer_type;                           ///< for warnings; empty: unknown
  std::string learning_rate_decay_type = "fixed";       ///< the optimizer's own schedule
  std::vector<LayerInfo> layers;                        ///< of the model, for quantization
  std::optional<int64_t> max_steps;                     ///< a cap of the run
  std::vector<int64_t> frozen_at_start = {};            ///< as in TimelineInputs
  std::vector<std::string> frozen_in_constructor = {};  ///< as in TimelineInputs
  /// Whoever updates keeps pruned weights at 0 (no gradient, no moments): then end_step() looks at
  /// them at every kReviveCheckSteps-th step only, and saves a pass over the weights at the others.
  bool updates_keep_zeros = false;
};

/// What apply_due() changed.
struct Applied {
  bool masks_changed = false;
  std::vector<int64_t> changed_params;  ///< whose masks changed: indexes, ascending
  std::vector<int64_t> reset_params;    ///< whose momentum is to be zeroed, ascending
  int64_t num_mask_updates = 0;         ///< masks computed, changed or not
  /// By parameter, where it is not what the last call left: the optimizer and the gradient buckets
  /// must follow.
  std::optional<std::vector<bool>> trainable;
};

/// Zeros of one parameter, counted in its weights.
struct ParamSparsity {
  std::string name;
  int64_t num_weights = 0;
  int64_t num_pruned = 0;  ///< by its mask
  int64_t num_zeros = 0;   ///< exact zeros, pruned or by chance
};

/// One number of a recipe's effect, for summaries:
/// "3:GradualKSModifier/blocks.0.conv.weight/sparsity".
struct Summary {
  std::string name;
  double value = 0;
};

/// What a program around the recipe may want of it at a step.
struct StepInfo {
  std::vector<Summary> summaries;                        ///< of every modifier
  std::array<double, kNumParamGroups> learning_rates{};  ///< for the update, by parameter group
};

/// A modifier's name in metrics and plans: its place in the recipe, from 1, and tag.
std::vector<std::string> modifier_names(const Timeline& timeline);

/// The recipe at work. A training loop makes these calls, on every rank alike:
///
///   attach(params, options, &faults)   once, when the model is there; an optimizer need not be
///   restored(control)                  if the run goes on from a save, once state() is filled
///   each step s:
///     apply_due(s, control)            before the forward pass; then obey Applied
///     forward, backward, gradients reduced over the ranks
///     mask_gradients()                 so that pruned weights gather no moments
///     optimizer update                 with learning_rate_at(s, group), weight decay likewise
///     end_step(updated, control)
///   apply_closing(s, control)          once, where training ends by itself, s updates done
///   finalize(s, control)               last: what is left is ready for export
///
/// It holds no state but masks and input ranges: with these restored, everything follows from the
/// step. One thread at a time. `control` is the control communicator; it is used at steps that
/// compute masks and while inputs are observed. Calls out of turn throw StateError.
class ScheduledModifierManager {
 public:
  explicit ScheduledModifierManager(Recipe recipe) : recipe_(std::move(recipe)) {}
  /// Reads a recipe file. Throws Error(kConfig) with all its faults, Error(kInputMissing) if it is
  /// not there.
  static ScheduledModifierManager from_yaml(const std::string& path);
  ScheduledModifierManager(ScheduledModifierManager&&) = default;
  ScheduledModifierManager& operator=(ScheduledModifierManager&&) = default;
  /// Warns if training reached its end and nobody called finalize().
  ~ScheduledModifierManager();

  /// Compiles the timeline and makes the masks. Diagnostics of the recipe against this model go to
  /// `faults`; the manager may then not be used. The parameters' tensors are kept (their memory may
  /// be moved by set_data later). Throws StateError if the model has no parameters, if it is
  /// attached already or if the run has started.
  void attach(const ParamTable& params, const AttachOptions& options, Diagnostics* faults);

  /// Makes the state that apply_due() starts from: masks as they are, everything trainable.
  /// Idempotent; the first apply_due() calls it if nobody did.
  void initialize();

  /// To be set on the model before its first forward pass (Model::set_layer_hook); null where the
  /// recipe quantizes nothing. It lives as long as the manager.
  LayerHook* layer_hook() { return quantizer_.get(); }

  /// Applies what is due before the forward pass of `step`: new masks are compared over all ranks
  /// and applied to the weights, values are set, quantization is switched. Throws
  /// Error(kDisagree).everywhere() naming tensor and ranks if masks differ.
  Applied apply_due(int64_t step, dist::Communicator& control);

  /// From now on all ranks have the weights in one memory (sync.share_weights): rank 0 alone writes
  /// into them, while the others wait.
  void share_weights() { weights_are_shared_ = true; }

  /// Whether apply_due(step) may change weights, masks or what is trained.
  bool acts_at(int64_t step) const { return last_step_ < 0 || !timeline().due_at(step).empty(); }

  /// Zeroes the gradients of pruned weights. Local, cheap, without allocation on the CPU.
  void mask_gradients();

  /// After the update of a step (`updated`: false where it was skipped): pruned weights are zeroed
  /// (AttachOptions::updates_keep_zeros), observed inputs agreed upon.
  void end_step(bool updated, dist::Communicator& control);

  /// Applies what is due once `step` updates are done and no more will follow: a closing sparsity
  /// whose end is the end of the run. Masks that would be let go then stay. Leaves exact zeros in
  /// the weights.
  Applied apply_closing(int64_t step, dist::Communicator& control);

  /// The model stands for itself from here on: masks are folded into exact zeros and gone (counts
  /// of them stay). Where the recipe quantizes, the layer hook stays on the model with the ranges
  /// as they are: forward passes go on rounding, as the exported model is quantization-aware until
  /// it is converted, and no longer observe. set_layer_hook(nullptr) takes it off. Includes
  /// apply_closing() if nobody called it. Idempotent.
  void finalize(int64_t step, dist::Communicator& control);
  /// The same for a run that was told to stop before its end and goes on from its save: nothing
  /// that is due later is applied. Local. Idempotent.
  void finalize_stopped();

  /// The masks, under `_lockstep/masks/`, and the input ranges, under `_lockstep/quantization/`.
  StateList state();
  /// Call after state() was written by a restore: compares the masks over the ranks (throws as
  /// apply_due) and enforces them.
  void restored(dist::Communicator& control);

  /// Zeroes the pruned items of a tensor of the parameter's shape, such as a moment.
  void zero_pruned(int64_t param, const at::Tensor& values) const;

  const Recipe& recipe() const { return recipe_; }
  /// Throws StateError before attach().
  const Timeline& timeline() const;
  const MaskTable& masks() const { return masks_; }
  const FakeQuantizer* quantizer() const { return quantizer_.get(); }

  /// The handle for an optimizer of one's own; group: base/tensors/params.h.
  double learning_rate_at(int64_t step, int group = kWeightGroup) const {
    return timeline().learning_rate_at(step, group);
  }
  double target_sparsity_at(int64_t step) const { return timeline().target_sparsity_at(step); }
  /// Pruned fraction of the covered parameters' weights, by the masks; 0 if none is covered. Costs
  /// no pass.
  double covered_sparsity() const;
  /// The same over all prunable weights of the model.
  double sparsity() const;
  /// Per prunable parameter, in the model's order; one pass over its weights.
  std::vector<ParamSparsity> measure() const;
  /// Pruned fraction of each parameter whose modifier asks for it (`log_types`), or of all covered.
  std::vector<Summary> layer_sparsities(bool all) const;
  /// What every modifier does at `step`, the same on all ranks: `learning_rate/<group>`,
  /// `weight_decay/<group>`, `sparsity`, `mask_updates`, `revived_weights`, `quantized_layers`,
  /// `<modifier>/target_sparsity`, and unless its `log_types` is none,
  /// `<modifier>/<param>/sparsity` (pruned fraction), `.../trainable` (0 or 1) or `.../value` (as
  /// last set).
  std::vector<Summary> summaries(int64_t step) const;
  /// Weights that will be quantized, hold many zeros (a twentieth or more) and have no mask, so
  /// that training would bring the zeros back: a warning for each modifier that quantizes such. One
  /// pass over these weights; apply_due() logs it at the run's first step, on rank 0.
  std::vector<std::string> unkept_zeros() const;
  StepInfo step_info(int64_t step) const;

  int64_t num_mask_updates() const { return num_mask_updates_; }
  /// Pruned weights that an update moved away from zero; looked for at every kReviveCheckSteps-th
  /// step, before they are zeroed again. Not 0 means an optimizer with moments of its own.
  int64_t num_revived() const { return num_revived_; }
  static constexpr int64_t kReviveCheckSteps = 100;

  int64_t min_epochs() const { return timeline().min_epochs(); }
  std::optional<int64_t> max_epochs() const { return timeline().max_epochs(); }
  std::optional<int64_t> total_steps() const { return timeline().total_steps(); }

 private:
  enum class Stage { kBuilt, kAttached, kRunning, kFinalized };

  void require_stage(bool holds, std::string_view call, std::string_view instead) const;
  void check_mask_kinds(Diagnostics* faults) const;
  void check_values(Diagnostics* faults) const;
  /// Logs, at the first step on rank 0, what a reader of the recipe would not expect.
  void report_start() const;
  /// closing: no update follows.
  Applied apply_at(int64_t step, bool closing, dist::Communicator& control);
  void apply(const Action& action, dist::Communicator& control, Applied* applied);
  void apply_to_masks(const Action& action, const ParamSet& set, dist::Communicator& control,
                      Applied* applied);
  void change_values(const Action& action, const ParamSet& set);
  /// Runs a part that writes into weights.
  template <typename Part>
  void write_weights(dist::Communicator& control, const Part& part);
  void follow_trainable(int64_t step, Applied* applied);
  void follow_quantization(int64_t step);

  Recipe recipe_;
  Stage stage_ = Stage::kBuilt;
  std::optional<Timeline> timeline_;
  MaskTable masks_;
  std::unique_ptr<FakeQuantizer> quantizer_;  // null: the recipe quantizes nothing
  ParamTable params_;
  int64_t num_prunable_weights_ = 0;
  std::vector<bool> trainable_;  // what the last apply_due left
  int64_t last_step_ = -1;       // of apply_due
  bool updates_keep_zeros_ = false, weights_are_shared_ = false;
  int64_t num_mask_updates_ = 0, num_revived_ = 0;
};

}  // namespace lockstep::recal
