#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/params.h"
#include "base/state_list.h"

namespace lockstep::recal {

/// The mask of one parameter.
struct Mask {
  int64_t param = 0;       ///< index in the parameter table
  std::string name;        ///< dotted
  at::Tensor weight;       ///< the model's own tensor
  at::Tensor kept;         ///< uint8, shape and device of the weight: 1 = kept, 0 = pruned
  int64_t num_pruned = 0;  ///< zeros of `kept`
};

/// Masks of the parameters that a recipe prunes; all kept at the start. Weights are only written by
/// enforce(). One thread at a time. The weights' memory may move (Tensor::set_data) between calls.
class MaskTable {
 public:
  MaskTable() = default;
  /// `covered`: ascending indexes in `params`.
  MaskTable(const ParamTable& params, const std::vector<int64_t>& covered);

  const std::vector<Mask>& all() const { return masks_; }
  /// The mask of a covered parameter; a bug otherwise.
  const Mask& of(int64_t param) const;

  /// Prunes the smallest weights up to this sparsity (magnitude_mask.h); what is pruned stays so.
  /// True if it changed.
  bool prune(int64_t param, double sparsity);
  /// Prunes every weight that is exactly zero. True if it changed.
  bool keep_zeros(int64_t param);
  /// Keeps every weight again. True if it changed.
  bool release(int64_t param);

  /// Zeroes the pruned weights: of all parameters, or of one. On the CPU one pass over masks that
  /// prune something, without allocation.
  void enforce();
  void enforce(int64_t param);

  /// SHA-256 over shape and bits.
  std::string digest(int64_t param) const;

  /// `_lockstep/masks/<name with slashes>`, live memory. A save of a run that did not prune a
  /// parameter lacks its mask, which then is restored as all kept.
  StateList state();
  /// Counts anew: call after `kept` was written from outside (a restore).
  void recount();

 private:
  Mask& find(int64_t param);
  bool set_kept(Mask* mask, const at::Tensor& cpu_kept);

  std::vector<Mask> masks_;
};

}  // namespace lockstep::recal
