#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/tensors/param_info.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "optim/optimizer_options.h"
#include "optim/optimizer_state.h"

/// Updates of the trainable parameters, and clipping of gradients.
namespace lockstep::optim {

/// Updates the trainable parameters in their flat buffers (docs/optimizers.md). The same rule
/// applies to dense buffers and to kept elements of masked ones. It runs in own kernels for float32
/// on the CPU, otherwise in ATen's operations. One caller at a time.
///
/// Stores only the slots (moments) that its own updates need. These are the slots of the regions
/// that this rank owns (ZeRO-1). If a mask keeps at most OptimizerState::kPackBelow of a buffer,
/// only kept weights have slots there. A pruned weight is 0 and its gradient counts as 0, so its
/// slots would stay 0: with every rule slots start at 0
/// (docs/decisions/0028-slots-start-at-zero.md).
///
/// Float32 on the CPU: no bit of a weight or slot depends on the division into regions, on packing,
/// or on the number of threads (tests/optim). Elsewhere ATen's rounding applies, and an element may
/// differ near the end of a region.
class Optimizer {
 public:
  /// Owns all regions; nothing is pruned. The buffers and the table must outlive the optimizer.
  Optimizer(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers,
            const ParamTable& params)
      : options_(options),
        buffers_(buffers),
        params_(params),
        slots_(buffers, params),
        own_updates_(params.size(), 0) {}
  virtual ~Optimizer() = default;

  /// Sets the regions that this rank updates: disjoint, in any order. A buffer without a region is
  /// not updated. Regions of frozen buffers are ignored; their slots stay complete on every rank.
  /// Drops the masks, so call set_kept() afterwards. Newly owned elements start at 0, unless
  /// sharded_state() was consolidated right before.
  void set_shards(const std::vector<ParamShard>& regions);

  /// Sets the kept elements of a buffer (base/simd/bit_mask.h; the buffer's elements as items),
  /// copied; empty: all. Call it at each change of masks, with the same bits on all ranks. Slots of
  /// weights that stay kept keep their values, others become 0. Ignored for a frozen buffer.
  void set_kept(size_t buffer, std::span<const uint8_t> bits);

  /// True if step() reads only the gradients of kept elements, for a buffer that is not frozen.
  /// Those of pruned elements are then unused; otherwise they must be +0. Valid until the next
  /// set_kept(), set_shards() or rebuild().
  bool reads_kept_alone(size_t buffer);

  /// Makes one update with the gradients in the buffers, which are undefined afterwards. Unchanged
  /// are elements that this rank does not own, frozen buffers and their slots, and pruned weights
  /// of packed buffers. Allocates no tensor, except in the first step and in the first one after
  /// state() or slots_of().
  ///
  /// found_inf: float32 [1] on the device, as in PyTorch's fused optimizers. If it is 1 (not 0)
  /// when the device reaches this update, nothing changes. The caller, which learns this later,
  /// then calls uncount(). Requires takes_found_inf() and no late regions.
  ///
  /// late: regions of float32 buffers on the CPU inside owned ones, without overlap. All else is
  /// updated first, then each late region after a wait_for_next(). The bits are the same.
  void step(const StepRates& rates, const LateShards& late = {}, const at::Tensor& found_inf = {});
  /// True if the rule has kernels that read found_inf and uses them for these buffers.
  virtual bool takes_found_inf() const { return false; }
  /// Reverts the count of an update that the device has skipped.
  void uncount();
  /// Excludes these parameters and their slots from the next step(), which counts no update for
  /// them, like PyTorch if `grad` is None. Ascending.
  void leave_out(std::vector<int64_t> params) { left_out_ = std::move(params); }

  /// Slots by parameter in its shape, `optimizer/<name>/<slot>`, and the number of updates, for
  /// some rules per parameter (`optimizer/<name>/updates`): for saves and restores. Contains values
  /// that this rank owns, zeros for other elements and for those that packing omits. Live memory
  /// until step(), set_shards(), set_kept() or rebuild(), which take over its contents. Another
  /// call returns the same memory, with those zeros restored.
  ///
  /// Until then the slots need the memory of dense slots of all parameters, on each rank, plus one
  /// packed tensor at the peak. Time: about three packed updates to expand, one to pack again in
  /// the next step. Nothing is copied if no slot is packed or sharded.
  StateList state();
  /// Entries of state() that set_shards() has sharded: their sum over the ranks is the complete
  /// tensor. Equal names on all ranks. The same memory as that of state().
  StateList sharded_state();
  /// Slots of one parameter in its shape, under the conditions of state(), but without restoring
  /// zeros.
  std::vector<at::Tensor> slots_of(int64_t param);
  /// Zeroes the parameter's momentum (slots `momentum` and `m`). Sums and means of squares stay:
  /// without them an update would be many times too large.
  void reset_momentum(int64_t param);

  /// Adapts the slots to the buffers' new layout and keeps their values. Call it after
  /// FlatParams::flatten(). Slots are dense until the next step() or set_kept(), complete until
  /// set_shards(). If slots are sharded, consolidate sharded_state() before the buffers are
  /// flattened.
  void rebuild(const std::vector<FlatBuffer>& buffers_before);

  /// Bytes that the slots use now.
  int64_t slot_bytes() const { return slots_.num_bytes(); }

 protected:
  /// Updates one owned region of a buffer that is not frozen. Slots are in the order of add_slot().
  virtual void update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) = 0;
  /// Called after the updates of one step's regions.
  virtual void end_step() {}

  /// Adds a slot: a tensor of zeros for each buffer's values.
  void add_slot(std::string name) { slots_.add(std::move(name)); }
  /// Number of updates of the region passed to update(), including this one.
  int64_t num_updates() const { return updates_of_part_; }
  /// Argument of the current step(); undefined: the step counts.
  const at::Tensor& found_inf() const { return found_inf_; }
  const OptimizerOptions& options() const { return options_; }
  const std::vector<FlatBuffer>& buffers() const { return buffers_; }

 private:
  /// A region that the next update treats differently: excluded (0), or with another number of
  /// updates.
  struct Apart {
    ParamShard region;
    int64_t num_updates = 0;
  };

  void list_slots(size_t buffer, StateList* list);
  bool counts_own_updates() const;
  bool is_left_out(int64_t param) const;
  void count_updates();
  int64_t updates_of(int64_t param) const;
  int64_t usual_updates() const;
  std::vector<Apart> regions_apart();
  void update_all_but(const std::vector<Apart>& apart, const StepRates& rates);
  void update_in_turn(const LateShards& late, const StepRates& rates);
  void update_part(SlotPart& part, const StepRates& rates);

  const OptimizerOptions options_;
  std::vector<FlatBuffer>& buffers_;
  const ParamTable& params_;
  OptimizerState slots_;
  int64_t num_updates_ = 0;
  std::vector<int64_t> own_updates_;  ///< by parameter; below 0: equal to num_updates_
  std::vector<int64_t> left_out_;     ///< parameters that the next step excludes
  std::vector<int64_t> counted_;      ///< parameters whose own updates the last step counted
  int64_t updates_of_part_ = 0;       ///< of the region that is being updated
  at::Tensor found_inf_;
};

/// Creates the optimizer of options.type. The buffers and the table must outlive it.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatBuffer>& buffers,
                                          const ParamTable& params);

/// Clips the gradients within the regions in place, first by norm, then by value. By norm: if the
/// square root of squared_grad_norm exceeds the limit, each gradient is multiplied by limit / norm,
/// like tf.clip_by_global_norm. squared_grad_norm covers the gradients of all parameters on all
/// ranks, with 0 for pruned weights (dist::GlobalStepStats). Gradients must be finite means. Equal
/// gradients and sums give equal bits on every rank. Returns the norm before clipping; nullopt
/// without clipping by norm.
std::optional<double> clip_gradients(const ClipOptions& options, std::vector<FlatBuffer>& buffers,
                                     const std::vector<ParamShard>& regions,
                                     std::optional<double> squared_grad_norm);

}  // namespace lockstep::optim
