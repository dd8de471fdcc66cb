#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/bits/simd.h"
#include "model/products/kept_products.h"

namespace lockstep::model {

/// The kept elements of a weight [O, I] of which a mask keeps few, and a linear layer's products
/// with these alone; the others are 0. Compressed sparse rows.
///
///   kept = KeptWeight::make(bits, O, I);  // at each change of the mask
///   values_K = kept->values_of(weight_OI);
///   outputs_BO = kept->outputs(values_K, inputs_BI, bias_O);
///   inputs_BI's gradient = kept->input_grads(values_K, grads_BO);
///   kept->write_grads(grads_BO, inputs_BI, /*adds=*/false, weight's gradient);
///
/// Symbols: B = samples, I = inputs, O = outputs, K = kept elements. Float32 on the CPU. The order
/// of each sum depends on the mask and on B alone: no bit depends on threads or on what the
/// processor offers, but the bits are others than those of dense products. Uses ATen's threads.
class KeptWeight {
 public:
  /// The largest share of kept elements with which this is faster than dense products
  /// (docs/results/tried.md): of many samples these are bound by sums, of one LibTorch has a quick
  /// way, and of few with a large weight few_samples.h.
  static constexpr double kMostKept = 1.0 / 3, kMostKeptOfMany = 0.2, kMostKeptOfFew = 0.11;
  static constexpr int64_t kMany = 33;  ///< samples
  /// The fewest elements of a weight.
  static constexpr int64_t kLeastElements = 1 << 18;

  /// `bits`: base/bits/bit_mask.h. Null where dense products are faster for every number of
  /// samples; else ask pays().
  static std::shared_ptr<const KeptWeight> make(const uint8_t* bits, int64_t num_rows,
                                                int64_t num_columns);
  KeptWeight(const uint8_t* bits, int64_t num_rows, int64_t num_columns);

  int64_t num_kept() const { return static_cast<int64_t>(columns_K_.size()); }
  /// Whether this is faster than dense products of so many samples.
  bool pays(int64_t num_samples) const;

  /// [K]
  at::Tensor values_of(const at::Tensor& weight_OI) const;
  /// [B, I] -> [B, O]; bias_O may be undefined.
  at::Tensor outputs(const at::Tensor& values_K, const at::Tensor& inputs_BI,
                     const at::Tensor& bias_O, SimdPath path = fastest_simd_path()) const;
  /// [B, O] -> [B, I]
  at::Tensor input_grads(const at::Tensor& values_K, const at::Tensor& grads_BO,
                         SimdPath path = fastest_simd_path()) const;
  /// Kept elements of grad_OI, contiguous, become the sum over the samples of output's gradient
  /// times input, or get it added. The others become 0 the first time and after note_dense_grad(),
  /// and stay as they are else. Of one weight's gradient, one call at a time.
  void write_grads(const at::Tensor& grads_BO, const at::Tensor& inputs_BI, bool adds,
                   const at::Tensor& grad_OI, SimdPath path = fastest_simd_path()) const;
  /// Something else has written the gradient, its other elements too.
  void note_dense_grad() const { others_are_zero_ = false; }

 private:
  void zero_others(const at::Tensor& grad_OI) const;
  KeptRows rows(int64_t begin_O, int64_t end_O) const {
    return {begin_O, end_O, begins_.data(), begins_.data() + 1, columns_K_.data()};
  }
  /// By row, where its kept elements in some columns begin and end.
  struct Columns {
    std::vector<int64_t> begins, ends;
  };
  Columns columns(int64_t begin_I, int64_t end_I) const;
  /// Calls function(begin_O, end_O), on several threads, for rows worth a thread each.
  template <typename Function>
  void for_rows(int64_t num_samples, const Function& function) const;

  const int64_t num_rows_, num_columns_;
  std::vector<int64_t> begins_;  // by row, and the end
  std::vector<uint32_t> columns_K_;
  mutable bool others_are_zero_ = false;  // of the gradient
};

}  // namespace lockstep::model
