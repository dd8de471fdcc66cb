#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "recal/masks/mask_kind.h"

/// Second-order statistics of one parameter, for pruning by the loss that it costs.
namespace lockstep::recal {

/// Empirical Fisher matrix of a parameter of D weights, row-major, in blocks of B weights along its
/// diagonal: F = lambda I + (1 / m) sum of g gᵀ over m gradients. The last block is padded with
/// gradients of 0. Sources: Hassibi & Stork 1992 (optimal brain surgeon), Kurtic et al.,
/// arXiv:2203.07259 (blocks), Frantar et al., arXiv:2107.03356 (few gradients in large blocks).
///
/// The statistics are float32 (FisherOptions::memory_bytes) on the CPU; their inverse is computed
/// in float64, a few blocks at a time.
class BlockFisher {
 public:
  BlockFisher(int64_t num_weights, const FisherOptions& options);

  /// Adds a gradient of D elements, float32 on the CPU, contiguous. The caller adds at most
  /// num_grads.
  void add(const at::Tensor& gradient_D);
  int64_t num_grads() const { return num_added_; }
  void reset();

  /// Increase of the loss if a weight is pruned and the others of its block adapt: w² / (2 F⁻¹ii).
  /// group > 1: if `group` neighbours are pruned together, ½ wᵀ (F⁻¹)⁻¹ w of each group, the same
  /// for all its members. weight_D and result: float32 [D]. `group` divides B and D.
  at::Tensor scores(const at::Tensor& weight_D, int64_t group = 1) const;

  /// Change of all weights if those marked in pruned_D (bool [D]) are pruned, to be subtracted. Sum
  /// of the changes for each pruned weight or group alone, as in arXiv:2203.07259.
  at::Tensor update(const at::Tensor& weight_D, const at::Tensor& pruned_D,
                    int64_t group = 1) const;

  /// Statistics and number of gradients, live memory. A restore writes into them.
  at::Tensor statistics() const { return statistics_; }
  int64_t* num_added() { return &num_added_; }

 private:
  struct Inverse;

  bool stores_gradients() const { return options_.num_grads < options_.block_size; }
  int64_t num_blocks() const;
  Inverse inverse(int64_t first, int64_t count, bool needs_matrix) const;
  /// Calls use(inverse, first weight, number of weights, number of blocks) for a few blocks at a
  /// time.
  template <typename Use>
  void for_each_part(bool needs_matrix, const Use& use) const;

  int64_t num_weights_;
  FisherOptions options_;
  int64_t num_added_ = 0;
  at::Tensor statistics_;  ///< sums of g gᵀ [blocks, B, B], or gradients [num_grads, blocks * B]
};

}  // namespace lockstep::recal
