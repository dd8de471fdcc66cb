#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "dist/communicator.h"
#include "recal/masks/mask_kind.h"
#include "recal/masks/mask_update.h"

/// Masks of all parameters that a recipe prunes, and functions for the bits of one mask.
namespace lockstep::recal {

// Functions of base/simd/bit_mask.h for tensors. kept_bits: uint8 [num_mask_bytes(n)] on the CPU
// for a tensor of n elements. Bits are in row-major order, whatever the tensor's strides and
// device are.

/// Returns the bits of a mask that keeps everything.
at::Tensor new_kept_bits(int64_t num_items);

/// Expands the bits to a tensor of this shape on the CPU: uint8, 1 = kept.
at::Tensor kept_flags(const at::Tensor& kept_bits, at::IntArrayRef sizes);

/// The mask of one parameter of n weights.
struct Mask {
  int64_t param = 0;     ///< index in the parameter table
  std::string name;      ///< dotted
  at::Tensor weight;     ///< the model's own tensor
  at::Tensor kept_bits;  ///< uint8 [num_mask_bytes(n)] on the CPU: base/simd/bit_mask.h, row-major
  at::Tensor device_mask;  ///< copy on the weight's device: bool, its shape, true = pruned;
                           ///< undefined if nothing is pruned or the weight is on the CPU
  int64_t num_pruned = 0;  ///< number of zeros in `kept_bits`
};

/// Masks of the parameters that a recipe prunes. At the start all weights are kept. Only enforce()
/// writes into weights. Not thread-safe: one thread at a time. The weights' memory may move
/// (Tensor::set_data) between calls.
///
/// Weights should be contiguous. Others work through copies, which is slow.
class MaskTable {
 public:
  MaskTable() = default;
  /// covered: ascending indexes in `params`. work: distribution of mask computation over ranks.
  MaskTable(const ParamTable& params, const std::vector<int64_t>& covered,
            MaskWork work = MaskWork::kBySize);

  const std::vector<Mask>& all() const { return masks_; }
  bool covers(int64_t param) const;
  /// Returns the mask of a covered parameter. Throws Error(kBug) for other parameters.
  const Mask& of(int64_t param) const;

  /// Prunes the smallest weights of these parameters to this sparsity (mask_update.h). Pruned
  /// weights stay pruned. Returns the parameters whose masks changed, in the given order.
  /// Collective if the work is distributed (update_masks_divided). Throws as check_mask_kind(),
  /// check_mask_sparsity() and update_masks_divided(). Call require_equal() afterwards to check
  /// that the ranks' masks agree. scores: tensors whose magnitudes replace those of the weights,
  /// one for each parameter, equal on all ranks; empty: the weights.
  std::vector<int64_t> prune(const std::vector<int64_t>& params, double sparsity,
                             const MaskRule& rule, dist::Communicator& control,
                             const std::vector<at::Tensor>& scores = {});
  /// Prunes every weight that is exactly zero. Returns true if the mask changed.
  bool keep_zeros(int64_t param);
  /// Keeps every weight again. Returns true if the mask changed.
  bool release(int64_t param);

  /// Zeroes the pruned weights of all parameters, or of one. On the CPU: one pass over the masks
  /// that prune something, without allocation.
  void enforce();
  void enforce(int64_t param);
  /// Zeroes the defined gradients of pruned weights, so that the optimizer's moments for them stay
  /// zero.
  void enforce_gradients();

  /// Zeroes the pruned elements of a tensor with the parameter's shape, such as a moment.
  void zero_pruned(int64_t param, const at::Tensor& values) const;

  /// Frees the masks and stops enforcing them; their counts stay. For a finished model.
  void drop();

  /// Number of pruned weights that are not zero, over all parameters. 0 after enforce(). One pass.
  int64_t count_revived() const;
  /// Number of pruned weights of all parameters.
  int64_t num_pruned() const;

  /// Throws Error(kDisagree).everywhere() unless these parameters' masks are equal on all ranks.
  /// The message names parameter, ranks and the first weight whose mask differs ("1" = kept):
  /// dist/replica_check.h. Collective: one all-reduce of 16 bytes if the masks are equal.
  void require_equal(std::string_view what, const std::vector<int64_t>& params,
                     dist::Communicator& control) const;

  /// Checkpoint state `_lockstep/masks/<name with slashes>`: kept_bits, live memory. A checkpoint
  /// of a run that did not prune a parameter lacks its mask. It is then restored as all kept. Call
  /// recount() after writing.
  StateList state();
  /// Updates counts and device masks after kept_bits were written from outside (a restore). Clears
  /// the unused bits of the last byte.
  void recount();

 private:
  Mask& find(int64_t param);
  /// Updates a mask after a change of kept_bits. Returns true if the number of pruned weights
  /// changed.
  bool update(Mask* mask);

  std::vector<Mask> masks_;
  MaskWork work_ = MaskWork::kBySize;
  bool dropped_ = false;
};

}  // namespace lockstep::recal
