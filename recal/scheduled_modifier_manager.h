#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "base/yaml/yaml_document.h"
#include "dist/communicator.h"
#include "recal/gradient_scores.h"
#include "recal/masks/mask_table.h"
#include "recal/quantization/fake_quantizer.h"
#include "recal/schedule/recipe.h"
#include "recal/schedule/timeline.h"

namespace lockstep::recal {

/// Error of a call in the wrong order. The message names the call and the call that must come
/// first.
class StateError final : public Error {
 public:
  explicit StateError(const std::string& message) : Error(ExitCode::kBug, "recal", message) {}
};

/// Properties of the training run that the recipe needs.
struct AttachOptions {
  int64_t steps_per_epoch = 1;
  double base_learning_rate = 0;                        ///< initial rate of the optimizer
  std::string optimizer_type;                           ///< for warnings; empty: unknown
  std::string learning_rate_decay_type = "fixed";       ///< the optimizer's own schedule
  std::vector<LayerInfo> layers;                        ///< layers of the model, for quantization
  std::optional<int64_t> max_steps;                     ///< limit of the run, if it has one
  std::vector<int64_t> frozen_at_start = {};            ///< as in TimelineInputs
  std::vector<std::string> frozen_in_constructor = {};  ///< as in TimelineInputs
  TeacherChoice teacher = TeacherChoice::kNone;         ///< as in TimelineInputs
  int rank = 0, world_size = 1;    ///< ranks that share the statistics of gradients
  int64_t planned_world_size = 1;  ///< of the run, if a tool with fewer ranks looks at it
  /// Set if the optimizer never moves pruned weights (no gradient, no moments). end_step() then
  /// checks and zeroes them only every kReviveCheckSteps steps, which saves a pass over the
  /// weights.
  bool updates_keep_zeros = false;
};

/// Changes that apply_due() made.
struct AppliedActions {
  bool masks_changed = false;
  std::vector<int64_t> changed_params;  ///< parameters with a changed mask: indexes, ascending
  std::vector<int64_t> reset_params;    ///< parameters whose momentum must be zeroed, ascending
  int64_t num_mask_updates = 0;         ///< computed masks, changed or not
  bool distillation_begins = false;     ///< a teacher that copies the network must do so now
  /// Trainable flag of each parameter, set only if it differs from the last call. The optimizer and
  /// the gradient buckets must then be updated.
  std::optional<std::vector<bool>> trainable;
};

/// Number of zeros in one parameter.
struct ParamSparsity {
  std::string name;
  int64_t num_weights = 0;
  int64_t num_pruned = 0;  ///< according to its mask
  int64_t num_zeros = 0;   ///< exact zeros, pruned or by chance
};

/// One named value for metrics, such as
/// "3:GradualKSModifier/blocks.0.conv.weight/sparsity".
struct Summary {
  std::string name;
  double value = 0;
};

/// Values of the recipe at one step, for the program that embeds it.
struct StepInfo {
  std::vector<Summary> summaries;                        ///< of all modifiers
  std::array<double, kNumParamGroups> learning_rates{};  ///< by parameter group
};

/// Names of the modifiers in metrics and plans: position in the recipe (from 1) and tag.
std::vector<std::string> modifier_names(const Timeline& timeline);

/// Executes a recipe during training. The training loop makes these calls, the same on every rank:
///
///   attach(params, options, &faults)   once, after the model exists; needs no optimizer
///   restored(control)                  after a restore from a checkpoint has filled state()
///   each step s:
///     apply_due(s, control)            before the forward pass; then act on AppliedActions
///     forward, backward, gradients reduced over the ranks
///     mask_gradients()                 keeps the optimizer's moments of pruned weights at zero
///     optimizer update                 with learning_rate_at(s, group), weight decay likewise
///     end_step(updated, control)
///   apply_closing(s, control)          once, at the regular end of training, after s updates
///   finalize(s, control)               last; the weights are then ready for export
///
/// The only state is masks, statistics of gradients and input ranges. After these are restored, all
/// else follows from the step. Not thread-safe: one thread at a time. `control` is the control
/// communicator. It is used at steps that change masks and while inputs are observed. After
/// share_weights() it is also used wherever weights are written. Calls in the wrong order throw
/// StateError.
class ScheduledModifierManager {
 public:
  explicit ScheduledModifierManager(Recipe recipe) : recipe_(std::move(recipe)) {}
  /// Reads a recipe file. Throws Error(kConfig) with all its faults, or Error(kInputMissing) if the
  /// file does not exist.
  static ScheduledModifierManager from_yaml(const std::string& path);
  ScheduledModifierManager(ScheduledModifierManager&&) = default;
  ScheduledModifierManager& operator=(ScheduledModifierManager&&) = default;
  /// Warns if training reached its end without a call of apply_closing() or finalize().
  ~ScheduledModifierManager();

  /// Compiles the timeline and creates the masks. Faults of the recipe for this model go to
  /// `faults`; with faults the manager must not be used. Keeps references to the parameters'
  /// tensors, whose memory may move later by set_data. Throws StateError if the model has no
  /// parameters, after an earlier attach(), or after the run has started.
  void attach(const ParamTable& params, const AttachOptions& options, Diagnostics* faults);

  /// Creates the state before the first apply_due(): masks as they are, everything trainable.
  /// Idempotent. The first apply_due() calls it if necessary.
  void initialize();

  /// Hook for Model::set_layer_hook, to be set before the first forward pass. Null if the recipe
  /// quantizes nothing. Owned by the manager.
  LayerHook* layer_hook() { return quantizer_.get(); }

  /// Applies the actions that are due before the forward pass of `step`. New masks are compared
  /// over all ranks and applied to the weights. Values are set, quantization is switched. Throws
  /// Error(kDisagree).everywhere() with tensor and ranks if masks differ. Collective at steps that
  /// change masks or, after share_weights(), values.
  AppliedActions apply_due(int64_t step, dist::Communicator& control);

  /// Declares that all ranks use one copy of the weights (sync.share_weights). From then on rank 0
  /// alone writes into the weights, between barriers.
  void share_weights() { weights_are_shared_ = true; }

  /// True if apply_due(step) may change weights, masks or the set of trainable parameters.
  bool acts_at(int64_t step) const { return last_step_ < 0 || !timeline().due_at(step).empty(); }

  /// Zeroes the gradients of pruned weights. Local; allocates nothing on the CPU.
  void mask_gradients();

  /// Agrees on the ranges of observed inputs, if the step's update counts. Optional, before
  /// end_step().
  void agree(bool updated, dist::Communicator& control);
  /// Ends a step after its update (`updated`: false if the update was skipped). Zeroes pruned
  /// weights (see AttachOptions::updates_keep_zeros). Calls agree() if the caller has not.
  void end_step(bool updated, dist::Communicator& control);

  /// Applies the actions that are due after the last update, such as a final sparsity at the run's
  /// end. step: number of updates done. Releases of masks are skipped. The weights then contain
  /// exact zeros.
  AppliedActions apply_closing(int64_t step, dist::Communicator& control);

  /// Makes the model independent of the recipe: masks become exact zeros in the weights and are
  /// dropped (their counts stay). With quantization, the layer hook stays on the model and keeps
  /// its ranges. Forward passes still round but no longer observe, because the exported model is
  /// quantization-aware until it is converted. set_layer_hook(nullptr) removes the hook. Calls
  /// apply_closing() if necessary. Idempotent.
  void finalize(int64_t step, dist::Communicator& control);
  /// Finalizes a run that stops early and will resume from its checkpoint. Applies no later
  /// actions. Local. Idempotent.
  void finalize_stopped();

  /// True if some modifier prunes by statistics of the gradients, which end_step() reads then. The
  /// gradients must be whole and equal on all ranks.
  bool reads_gradients() const { return !scores_.empty(); }

  /// Checkpoint state: masks (`_lockstep/masks/`), statistics of gradients (`_lockstep/pruning/`)
  /// and input ranges (`_lockstep/quantization/`).
  StateList state();
  /// Completes a restore that has filled state(). Compares the masks over the ranks (throws like
  /// apply_due) and applies them to the weights.
  void restored(dist::Communicator& control);

  /// Zeroes the pruned elements of a tensor with the parameter's shape, such as a moment.
  void zero_pruned(int64_t param, const at::Tensor& values) const;

  const Recipe& recipe() const { return recipe_; }
  /// Throws StateError before attach().
  const Timeline& timeline() const;
  const MaskTable& masks() const { return masks_; }
  const std::shared_ptr<FakeQuantizer>& quantizer() const { return quantizer_; }

  /// Learning rate for a caller's own optimizer. Groups: base/tensors/params.h.
  double learning_rate_at(int64_t step, int group = kWeightGroup) const {
    return timeline().learning_rate_at(step, group);
  }
  double target_sparsity_at(int64_t step) const { return timeline().target_sparsity_at(step); }
  /// Pruned fraction of the weights of all covered parameters, from the masks' counts (no pass over
  /// the weights). 0 if no parameter is covered.
  double covered_sparsity() const;
  /// Pruned fraction of all prunable weights of the model, from the masks' counts.
  double sparsity() const;
  /// Sparsity of each prunable parameter, in the model's order. Reads these weights once.
  std::vector<ParamSparsity> measure() const;
  /// Pruned fraction of each covered parameter; all = false: only where `log_types` asks for it.
  std::vector<Summary> layer_sparsities(bool all) const;
  /// State of every modifier at `step`, the same on all ranks. Names: `learning_rate/<group>`,
  /// `weight_decay/<group>`, `sparsity`, `mask_updates`, `revived_weights`, `quantized_layers`,
  /// `<modifier>/target_sparsity`. Unless the modifier's `log_types` is none, also
  /// `<modifier>/<param>/sparsity` (pruned fraction), `.../trainable` (0 or 1) or `.../value` (the
  /// last value set).
  std::vector<Summary> summaries(int64_t step) const;
  /// Warnings about zeros that training would overwrite. A weight is reported if it will be
  /// quantized, has at least a twentieth of zeros and has no mask. One warning per modifier. Reads
  /// these weights once. apply_due() logs the warnings at the run's first step, on rank 0.
  std::vector<std::string> unkept_zeros() const;
  StepInfo step_info(int64_t step) const;

  int64_t num_mask_updates() const { return num_mask_updates_; }
  /// Number of pruned weights that updates moved away from zero. Counted at every
  /// kReviveCheckSteps-th step, before they are zeroed again. A value above 0 means that the
  /// optimizer has moments that mask_gradients() does not reach.
  int64_t num_revived() const { return num_revived_; }
  static constexpr int64_t kReviveCheckSteps = 100;

  int64_t min_epochs() const { return timeline().min_epochs(); }
  std::optional<int64_t> max_epochs() const { return timeline().max_epochs(); }
  std::optional<int64_t> total_steps() const { return timeline().total_steps(); }

 private:
  enum class Stage { kBuilt, kAttached, kRunning, kFinalized };

  void require_stage(bool holds, std::string_view call, std::string_view instead) const;
  void check_mask_kinds(Diagnostics* faults) const;
  void check_statistics(int64_t world_size, Diagnostics* faults) const;
  void check_values(Diagnostics* faults) const;
  /// Logs surprises of the recipe for this model, at the first step, on rank 0.
  void report_start() const;
  /// Applies the actions due at `step`. closing: true if no update follows.
  AppliedActions apply_at(int64_t step, bool closing, dist::Communicator& control);
  void apply(const Action& action, dist::Communicator& control, AppliedActions* applied);
  void apply_to_masks(const Action& action, const ParamSet& set, dist::Communicator& control,
                      AppliedActions* applied);
  /// Prunes a set and applies the change that follows for its other weights. Returns the parameters
  /// whose masks changed.
  std::vector<int64_t> prune(const Action& action, const ParamSet& set,
                             dist::Communicator& control);
  void change_values(const Action& action, const ParamSet& set);
  /// Runs `part`, which writes into weights; with shared weights on rank 0 only, between barriers.
  template <typename Part>
  void write_weights(dist::Communicator& control, const Part& part);
  void follow_trainable(int64_t step, AppliedActions* applied);
  void follow_quantization(int64_t step);

  Recipe recipe_;
  Stage stage_ = Stage::kBuilt;
  std::optional<Timeline> timeline_;
  MaskTable masks_;
  GradientScores scores_;
  std::shared_ptr<FakeQuantizer> quantizer_;  // null: the recipe quantizes nothing
  ParamTable params_;
  int64_t num_prunable_weights_ = 0;
  std::vector<bool> trainable_;  // as of the last apply_due
  int64_t last_step_ = -1;       // of the last apply_due
  bool is_closed_ = false;       // apply_closing() was called after it
  bool updates_keep_zeros_ = false, weights_are_shared_ = false;
  int64_t num_mask_updates_ = 0, num_revived_ = 0;
};

}  // namespace lockstep::recal
