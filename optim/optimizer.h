#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/tensors/param_shard.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "optim/optimizer_state.h"
#include "optim/options/optimizer_options.h"

namespace lockstep::optim {

/// Updates the trainable parameters in their flat buffers (docs/optimizers.md). One rule for dense
/// buffers and for what masks leave, in kernels of our own for float32 on the CPU, in ATen's
/// operations elsewhere. One caller at a time.
///
/// Of its slots (moments) it keeps only what its own updates need: those of the regions that this
/// rank owns, and in a buffer of which a mask keeps at most OptimizerState::kPackBelow those of
/// kept weights alone. A pruned weight is 0 and its gradient counts as 0, so its slots would stay 0
/// anyway: with every rule slots start at 0 (docs/decisions/0028-slots-start-at-zero.md).
///
/// Float32 on the CPU: no bit of a weight or slot depends on how regions are cut, on what is
/// packed, or on the number of threads (tests/optim). Elsewhere ATen rounds as it likes, and an
/// element may come out differently near the end of a region.
class Optimizer {
 public:
  /// The buffers and the table must outlive the optimizer. Owns all; nothing is pruned.
  Optimizer(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers,
            const ParamTable& params)
      : options_(options),
        buffers_(buffers),
        params_(params),
        slots_(buffers, params),
        own_updates_(params.size(), 0) {}
  virtual ~Optimizer() = default;

  /// Which parts of the buffers this rank updates, disjoint, in any order; of a buffer without a
  /// region none. Regions of frozen buffers are passed over: their slots stay whole on every rank.
  /// Masks are forgotten: set_kept() comes after. What was not owned before starts at 0, unless
  /// sharded_state() was completed right before.
  void set_shards(const std::vector<ParamShard>& regions);

  /// Which elements of a buffer are kept (base/bits/bit_mask.h; its elements as items), copied;
  /// empty: all. At each change of masks, with the same bits on all ranks. Slots of weights that
  /// stay kept keep their values, others are 0. Ignored for a frozen buffer.
  void set_kept(size_t buffer, std::span<const uint8_t> bits);

  /// Whether step() reads the gradients of kept elements alone, of a buffer that is not frozen:
  /// then those of pruned ones may be anything. Else they must be +0. Until the next set_kept(),
  /// set_shards() or rebuild().
  bool reads_kept_alone(size_t buffer);

  /// One update with the gradients that stand in the buffers, and mean nothing afterwards. What
  /// this rank does not own, frozen buffers and their slots stay as they are, and so do pruned
  /// weights of packed buffers. No tensor is allocated, except in the
  /// first step and in one after state() or slots_of().
  ///
  /// found_inf: float32 [1] on the device, as PyTorch's fused optimizers take it: where it is 1,
  /// not 0, once this update's turn comes there, all stays as it is, and the caller, who hears of
  /// it later, says uncount(). Only where takes_found_inf(), and with nothing late.
  ///
  /// late: regions of float32 buffers on the CPU that lie inside owned ones, without overlap. All
  /// else is updated first, then each of them once wait_for_next() has returned. The same bits.
  void step(const StepRates& rates, const LateShards& late = {}, const at::Tensor& found_inf = {});
  /// Whether the rule has kernels that look at such a number, and takes them for these buffers.
  virtual bool takes_found_inf() const { return false; }
  /// The update before was refused: it is not counted.
  void uncount();
  /// The next step() leaves these parameters and their slots as they are, and does not count an
  /// update of them, as PyTorch where `grad` is None. Ascending.
  void leave_out(std::vector<int64_t> params) { left_out_ = std::move(params); }

  /// Slots by parameter in its shape, `optimizer/<name>/<slot>`, and the number of updates, for
  /// some rules of each parameter (`optimizer/<name>/updates`): for saves and restores. Values that
  /// this rank owns, zeros where it does not and where packing left none. Live memory until step(),
  /// set_shards(), set_kept() or rebuild(), which take back what then stands there; calling again
  /// gives the same memory, with those zeros restored.
  ///
  /// Until then the slots take as much memory as dense slots of all parameters, on each rank, and
  /// one packed tensor more at the peak. Time: about three packed updates to expand, one to pack
  /// again in the next step. Nothing is copied where no slot is packed or sharded.
  StateList state();
  /// The entries of state() whose values are divided over the ranks by set_shards(): summed over
  /// the ranks they are whole. Equal names on all ranks. The same memory as state()'s.
  StateList sharded_state();
  /// Slots of one parameter in its shape, on the terms of state() but for the zeros.
  std::vector<at::Tensor> slots_of(int64_t param);
  /// The parameter's momentum (slots `momentum` and `m`) becomes 0. Sums and means of squares stay:
  /// without them an update would be many times too large.
  void reset_momentum(int64_t param);

  /// Call after the buffers were flattened anew: slots then have the buffers' new order and keep
  /// their values. They are dense until the next step() or set_kept(), whole until set_shards().
  /// Where slots are sharded, consolidate sharded_state() before the buffers are flattened.
  void rebuild(const std::vector<FlatBuffer>& buffers_before);

  /// Memory that the slots take now.
  int64_t slot_bytes() const { return slots_.num_bytes(); }

 protected:
  /// One owned region of a buffer that is not frozen. Slots in the order of add_slot().
  virtual void update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) = 0;
  /// Called after the updates of one step's regions.
  virtual void end_step() {}

  /// A zero tensor beside each buffer's values.
  void add_slot(std::string name) { slots_.add(std::move(name)); }
  /// Updates made of what update() is called for, this one included.
  int64_t num_updates() const { return updates_of_part_; }
  /// Of the step under way; undefined: it counts.
  const at::Tensor& found_inf() const { return found_inf_; }
  const OptimizerOptions& options() const { return options_; }
  const std::vector<FlatBuffer>& buffers() const { return buffers_; }

 private:
  /// Parameters that the next update treats unlike the rest: left out (0), or with another number
  /// of updates.
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
  std::vector<int64_t> own_updates_;  ///< by parameter; below 0: as many as num_updates_
  std::vector<int64_t> left_out_;     ///< of the next step
  std::vector<int64_t> counted_;      ///< whose own updates the last step counted
  int64_t updates_of_part_ = 0;       ///< of what is being updated
  at::Tensor found_inf_;
};

/// The buffers and the table must outlive the optimizer.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatBuffer>& buffers,
                                          const ParamTable& params);

}  // namespace lockstep::optim
