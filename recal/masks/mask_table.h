#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "dist/communicator.h"
#include "recal/masks/distributed_mask_update.h"
#include "recal/masks/mask_kind.h"
#include "recal/masks/mask_update.h"

namespace lockstep::recal {

/// The mask of one parameter of n weights.
struct Mask {
  int64_t param = 0;     ///< index in the parameter table
  std::string name;      ///< dotted
  at::Tensor weight;     ///< the model's own tensor
  at::Tensor kept_bits;  ///< uint8 [num_mask_bytes(n)] on the CPU: base/bits/bit_mask.h, row-major
  at::Tensor device_mask;  ///< a device's own copy: bool, the weight's shape, true = pruned;
                           ///< undefined while nothing is pruned and for weights on the CPU
  int64_t num_pruned = 0;  ///< zeros of `kept_bits`
};

/// Masks of the parameters that a recipe prunes; all kept at the start. Weights are only written by
/// enforce(). One thread at a time. The weights' memory may move (Tensor::set_data) between calls.
///
/// Weights are contiguous in a steady state; others are handled through copies, slowly.
class MaskTable {
 public:
  MaskTable() = default;
  /// `covered`: ascending indexes in `params`. `work`: who computes new masks.
  MaskTable(const ParamTable& params, const std::vector<int64_t>& covered,
            MaskWork work = MaskWork::kBySize);

  const std::vector<Mask>& all() const { return masks_; }
  bool covers(int64_t param) const;
  /// The mask of a covered parameter; a bug otherwise.
  const Mask& of(int64_t param) const;

  /// Prunes the smallest weights of these parameters up to this sparsity (mask_update.h); what is
  /// pruned stays so. Returns the parameters whose masks changed, in the given order. Collective
  /// where the work is divided (mask_division.h); throws as recal/masks/mask_check.h and
  /// update_masks_divided(). That the ranks' masks are equal afterwards is require_equal()'s to
  /// show.
  std::vector<int64_t> prune(const std::vector<int64_t>& params, double sparsity,
                             const MaskRule& rule, dist::Communicator& control);
  /// Prunes every weight that is exactly zero. True if the mask changed.
  bool keep_zeros(int64_t param);
  /// Keeps every weight again. True if the mask changed.
  bool release(int64_t param);

  /// Zeroes the pruned weights: of all parameters, or of one. On the CPU one pass over masks that
  /// prune something, without allocation.
  void enforce();
  void enforce(int64_t param);
  /// Zeroes the gradients of pruned weights, where there are gradients, so that what an optimizer
  /// keeps for them stays zero.
  void enforce_gradients();

  /// Zeroes the pruned items of a tensor of the parameter's shape, such as a moment.
  void zero_pruned(int64_t param, const at::Tensor& values) const;

  /// The masks are gone and enforced no more; their counts stay. For a model that is done.
  void drop();

  /// Pruned weights that are not zero, of all parameters: 0 after enforce(). One pass.
  int64_t count_revived() const;
  /// Of all parameters.
  int64_t num_pruned() const;

  /// SHA-256 over shape and bits.
  std::string digest(int64_t param) const;
  /// Throws Error(kDisagree).everywhere() unless these parameters' masks are equal on all ranks;
  /// the message names parameter, ranks and the first weight whose mask differs ("1" = kept):
  /// dist/replica/replica_check.h. Collective; while masks are equal, one all_reduce of 16 bytes.
  void require_equal(std::string_view what, const std::vector<int64_t>& params,
                     dist::Communicator& control) const;

  /// `_lockstep/masks/<name with slashes>`: kept_bits, live memory. A save of a run that did not
  /// prune a parameter lacks its mask, which then is restored as all kept. Call recount() after
  /// writing.
  StateList state();
  /// Call after kept_bits were written from outside (a restore): counts anew, clears bits behind
  /// the end, brings devices up to date.
  void recount();

 private:
  Mask& find(int64_t param);
  /// After kept_bits were written. True if fewer or more are pruned than before.
  bool update(Mask* mask);

  std::vector<Mask> masks_;
  MaskWork work_ = MaskWork::kBySize;
  bool dropped_ = false;
};

}  // namespace lockstep::recal
