#pragma once

#include <cstdint>
#include <vector>

#include "base/tensors/params.h"
#include "dist/communicator.h"
#include "dist/reducer/gradient_reducer.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"
#include "recal/masks/mask_table.h"
#include "recal/schedule/timeline.h"
#include "recal/scheduled_modifier_manager.h"

/// Application of a recipe to optimizer, buffers and layers: rates, trainable parameters, masks.
namespace lockstep::train {

/// Learning rate and weight decay of each parameter group at each step: those of the recipe, else
/// the optimizer's own. Pure functions of the step. All references outlive this.
class RateSchedule {
 public:
  RateSchedule(const optim::OptimizerOptions& options, const recal::Timeline& timeline,
               int64_t total_steps)
      : options_(options), timeline_(timeline), total_steps_(total_steps) {}

  /// Returns the rates of the update at `step` (the number of updates done before it).
  optim::StepRates at(int64_t step) const;

 private:
  const optim::OptimizerOptions& options_;
  const recal::Timeline& timeline_;
  int64_t total_steps_;
};

/// Assigns parameters to buffers. A buffer contains parameters of one group and one dtype that are
/// all trainable or all frozen, up to bucket_bytes. `trainable`: by parameter. A pure function,
/// equal on all ranks.
optim::BufferPlan plan_layout(const ParamTable& params, const std::vector<bool>& trainable,
                              int64_t bucket_bytes);

/// Freezes and unfreezes: lays out parameters, gradients and optimizer slots for this set of
/// trainable parameters. Values and slots are kept, also of frozen parameters. Collective: throws
/// Error(kDisagree).everywhere() if the ranks' plans differ.
void flatten_for(const std::vector<bool>& trainable, int64_t bucket_bytes,
                 optim::FlatParams& flat_params, optim::Optimizer& optimizer,
                 dist::Communicator& control);

/// Applies the recipe's changes to optimizer and buffers. Moments of pruned weights are zeroed
/// (otherwise they would move the weights), momentum to be reset is zeroed, and frozen parameters
/// leave the buffers. Collective.
void apply_recipe_changes(const recal::Applied& due, const recal::ScheduledModifierManager& recipe,
                          int64_t bucket_bytes, optim::FlatParams& flat_params,
                          optim::Optimizer& optimizer, dist::Communicator& control);

/// Returns the mask bits of one buffer's elements (base/simd/bit_mask.h); empty if all are kept.
std::vector<uint8_t> kept_bits_of(const FlatBuffer& buffer, const recal::MaskTable& masks);

/// Passes the masks to layers that can compute with kept elements alone (Param::follow_mask). Call
/// it whenever set_masks() is called.
void tell_layers(const recal::MaskTable& masks, const ParamTable& params);

/// Passes the masks to reducer and optimizer, buffer by buffer. Gradients of dropped elements
/// become +0 (or undefined if they are never read) and need not travel; their moments are not kept.
/// adds_squares: steps request StepRequests::squared_grad_norm, which reads all gradients. Call it
/// before the first step, and before each step whose masks or buffers changed, equally on all
/// ranks.
void set_masks(const recal::MaskTable& masks, const std::vector<FlatBuffer>& buffers,
               bool adds_squares, dist::GradientReducer& reducer, optim::Optimizer& optimizer);

}  // namespace lockstep::train
