#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "base/step_clock.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "dist/communicator.h"
#include "dist/reducer/gradient_reducer.h"
#include "dist/reduction_modes.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"
#include "optim/optimizer_options.h"
#include "recal/scheduled_modifier_manager.h"

/// Data-parallel training in a loop of the user's: gradients, masks, rates and checkpoints.
namespace lockstep::pytorch {

/// The last error that a loop threw into PyTorch, which passes on its text alone.
struct LoopError {
  std::string text = {};
  ExitCode code = ExitCode::kDone;
};
LoopError last_loop_error();

/// Keeps the present exception as last_loop_error() and throws it for PyTorch. The advice of a
/// timeout then names the argument of lockstep.DataParallel. Call it in a catch block.
[[noreturn]] void rethrow_for_pytorch();

/// Module, optimizer and recipe of a user's loop. Equal on all ranks.
struct LoopOptions {
  ParamTable params = {};                       ///< trained parameters, in the module's order
  std::vector<std::string> frozen_params = {};  ///< names of the others
  std::vector<LayerInfo> layers = {};           ///< layers that can be quantized
  std::string recipe = {};                      ///< path; empty: no recipe
  int64_t steps_per_epoch = 0;                  ///< 0: unknown; the recipe then counts in steps
  double learning_rate = 0;                     ///< initial rate of the user's optimizer
  std::string optimizer_type = {};              ///< class of the user's optimizer, for messages
  /// Set if that class never moves a weight that has neither a gradient nor moments.
  bool updates_keep_zeros = false;
  /// Rule by which the loop updates the parameters, in place of the user's optimizer; nullopt: it
  /// does not.
  std::optional<optim::OptimizerOptions> rule = {};
  /// One copy of the weights for all ranks of the host. Requires a rule.
  bool share_weights = false;
  dist::SyncOptions sync = {};  ///< shard_optimizer requires a rule
};

/// Changes at the begin of a step that the owner of the optimizer's state must follow. Indexes of
/// parameters, ascending.
struct StateChanges {
  std::vector<int64_t> pruned;  ///< new masks: zero the pruned elements of the moments
  std::vector<int64_t> reset;   ///< momentum must be zeroed
};

/// Rates that the recipe sets for one update, by parameter group; nullopt: it sets none.
struct RecipeRates {
  std::array<std::optional<double>, kNumParamGroups> learning_rates;
  std::array<std::optional<double>, kNumParamGroups> weight_decays;

  bool set_nothing() const;
};

/// Engine of lockstep.DataParallel (python/lockstep/data_parallel.py): the training step of
/// train/step/trainer.h, cut at the places where a user's loop calls PyTorch.
///
///   begin_step(syncs)   before a forward pass that records gradients
///   forward, backward   the end of backward averages the gradients over the ranks
///   begin_update()      before optimizer.step()
///   end_update()        after it: the step is complete
///
/// Between two updates there may be several forward and backward passes. Those that begin with
/// syncs = false add to this rank's gradients and send nothing. A backward pass with syncs averages
/// all that was added, by the number of ranks: like DistributedDataParallel, each rank has the same
/// weight.
///
/// Gradients are views of flat buffers. Autograd may put a new tensor in place of `grad`, since
/// zero_grad() drops the views. A hook then copies it into the buffer and sets the view again.
/// A parameter without gradient on any rank has no `grad` after the average, so that torch.optim
/// skips it. If a mean is not finite, no parameter has one during the update.
///
/// With a rule the loop makes the update itself (update()), and the user's optimizer finds no
/// gradient. With sync.shard_optimizer or share_weights each rank updates a part, and `grad` is
/// undefined outside of this part after backward.
///
/// All ranks make the same calls. Errors marked everywhere() reach all ranks at the same call.
/// Others end one rank. The others then time out in their next collective. One thread at a time;
/// autograd's threads call the hooks.
class TrainingLoop {
 public:
  /// Moves the parameters into flat buffers and copies rank 0's values to all ranks. Collective.
  /// Throws Error(kConfig, kInputMissing, kDisagree).everywhere() for unsupported or different
  /// parameters, and for a recipe with faults.
  TrainingLoop(std::unique_ptr<dist::Communicator> control, LoopOptions options);
  ~TrainingLoop();
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  /// Copies rank 0's values over those of all ranks. Dense CPU tensors. Collective.
  void broadcast(at::TensorList tensors);

  /// Applies the recipe's actions at the first call of a step. syncs: the next backward pass
  /// averages the gradients. Collective at such a first call.
  StateChanges begin_step(bool syncs);

  /// Averages the gradients if no backward pass has, since it reached no parameter on this rank.
  /// Returns the rates of the update. Collective. Throws Error(kConfig) if gradients were added
  /// without any average.
  RecipeRates begin_update();
  /// Makes the update by the loop's rule, unless nothing was averaged or a mean is not finite. Then
  /// removes all gradients. Collective. rates: of this update.
  void update(const optim::StepRates& rates);
  /// Enforces the masks and advances the step, unless nothing was averaged since the last update.
  void end_update();

  /// Applies the recipe's closing actions after the last update. The weights then contain exact
  /// zeros, and the recipe no longer acts. The masks stay, also in checkpoints. Collective.
  StateChanges finalize();

  /// Entries of a checkpoint that the loop owns: step, timeline, masks, choices of the reducer.
  /// Live memory.
  StateList state();
  /// Completes a restore that has filled state(): compares and enforces the masks. The next
  /// begin_step() is a first one. accepts_changes: the recipe may differ from the checkpoint's.
  /// Collective. Throws Error(kConfig).everywhere() for another recipe, kDisagree if masks differ.
  void restored(bool accepts_changes);
  /// Sets a function that is called before weights, moments or masks change. May be empty.
  void set_before_changes(std::function<void()> before) { before_changes_ = std::move(before); }
  /// Creates a communicator of the same ranks. Collective. Throws Error(kUnavailable).everywhere().
  std::unique_ptr<dist::Communicator> another_communicator() const;
  dist::Communicator& control() const { return *control_; }

  /// Zeroes the pruned elements of a tensor with the parameter's shape, such as a moment.
  void zero_pruned(int64_t param, const at::Tensor& values) const {
    recipe_.zero_pruned(param, values);
  }

  /// Returns the parameter group of each parameter (base/tensors/param_info.h).
  std::vector<int64_t> groups_P() const;
  /// Slots of a parameter if the loop has a rule and no part of it is on other ranks; live memory
  /// until the next update.
  std::vector<at::Tensor> slots_of(int64_t param);
  /// Returns the output of a linear layer, whose backward writes the weight's gradient into the
  /// loop's buffer. param: index of the weight.
  at::Tensor linear(int64_t param, const at::Tensor& inputs, const at::Tensor& weight_OI,
                    const at::Tensor& bias_O) const;
  /// True if running statistics of batch normalisation no longer change.
  bool freezes_batch_norm() const {
    return recipe_.timeline().quantization_at(clock_.step).batch_norm_frozen;
  }
  int64_t step() const { return clock_.step; }
  /// Number of backward passes with their forward passes, averaged or not. Several forward passes
  /// may precede one.
  int64_t num_passes() const { return num_passes_; }
  /// Elements of the parameters that updates change now.
  int64_t num_trainable() const;
  int rank() const { return control_->rank(); }
  const recal::ScheduledModifierManager& recipe() const { return recipe_; }
  /// Totals of the last average.
  const dist::GlobalStepStats& totals() const { return totals_; }

 private:
  StateChanges follow(const recal::AppliedActions& due);
  void lay_out(const std::vector<bool>& trainable);
  void share_weights();
  void take_back_values();
  void before_changes();
  void watch_gradients();
  void set_masks();

  // Backward.
  at::Tensor& grad_of(size_t param) { return params_[param].tensor.mutable_grad(); }
  void on_gradient(int64_t param);
  void queue_average();
  void count_pass();
  bool has_divided_gradients() const;
  void move_into_buffer(size_t param);
  void average();
  double fill_missing();
  void drop_unreached();
  void drop_gradients();

  const std::unique_ptr<dist::Communicator> control_, gradients_;
  ParamTable params_;
  const int64_t bucket_bytes_;
  optim::FlatParams flat_params_;
  dist::GradientReducer reducer_;
  const std::unique_ptr<optim::Optimizer> optimizer_;  ///< null: the user's makes the updates
  recal::ScheduledModifierManager recipe_;
  StepClock clock_;
  const std::string timeline_;  ///< canonical text of the recipe's timeline
  std::string saved_timeline_;  ///< in checkpoints; a restore overwrites it
  std::function<void()> before_changes_;
  std::vector<at::Tensor> views_;  ///< by parameter: its part of the gradients; undefined if frozen

  int64_t applied_step_ = -1;  ///< step whose actions were applied last
  bool is_finalized_ = false;
  bool has_set_masks_ = false;
  const bool is_divided_;  ///< each rank updates a part

  int64_t num_passes_ = 0;
  bool is_counted_ = true;  ///< the last forward pass is in num_passes_

  // of the current step
  bool is_armed_ = false;                ///< the next backward pass averages
  bool keeps_old_gradients_ = false;     ///< has_divided_gradients() since an earlier average
  std::vector<size_t> hidden_grads_;     ///< parameters whose gradients the user's optimizer skips
  bool accumulates_ = false;             ///< the next backward pass does not
  std::atomic<bool> is_queued_ = false;  ///< average() follows the backward pass that runs
  bool has_unsynced_ = false;            ///< gradients were added since the last average
  bool is_synced_ = false;               ///< an average was made since the last update
  dist::GlobalStepStats totals_;
  bool names_skipped_ = true;  ///< the next skipped update is logged

  std::unique_ptr<dist::GradientHooks> hooks_;  ///< last: uses the members above
};

}  // namespace lockstep::pytorch
