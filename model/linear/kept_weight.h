#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/simd/simd.h"

/// Products with the kept elements of a weight: tiles of samples, kernels, and KeptWeight.
namespace lockstep::model {

/// Tiles of T samples. A matrix [B, N] of samples is stored as tiles [N, T]. So T samples of an
/// element are next to each other in memory. The last tile is padded with zeros.
struct Tiles {
  const float* items = nullptr;  ///< [tiles, N, T]
  int64_t num_tiles = 0;
  int64_t width_T = 0;
};

/// Returns the smallest of 8, 16 and 32 that holds all samples, or 32.
int64_t tile_width(int64_t num_samples);

/// Converts [B, N] to [tiles, N, T], float32 on the CPU.
at::Tensor tiled(const at::Tensor& samples_BN, int64_t width_T);
/// Converts [tiles, N, T] back to [B, N].
at::Tensor untiled(const at::Tensor& tiles, int64_t num_samples);

/// Returns the elements [N, T] of one tile.
inline float* data_of(const at::Tensor& tiles, int64_t tile) {
  return tiles.mutable_data_ptr<float>() + tile * tiles.size(1) * tiles.size(2);
}
inline Tiles view_of(const at::Tensor& tiles) {
  return {tiles.const_data_ptr<float>(), tiles.size(0), tiles.size(2)};
}

/// Kept elements of some rows of a weight [O, I], or of some columns of these rows. Those of row o
/// are at begins[o] to ends[o], ascending by column.
struct KeptRows {
  int64_t begin_O = 0, end_O = 0;  ///< rows to process
  const int64_t* begins = nullptr;
  const int64_t* ends = nullptr;
  const uint32_t* columns_K = nullptr;
};

/// Implementation of products with the kept elements of a weight, whose values are values_K. Every
/// sum runs over the kept elements in order, or over the samples in groups of 8. So the bits are
/// the same on every path and for every tile width.
struct KeptProducts {
  /// Computes outputs_OT = W inputs_IT + bias for one tile. bias_O may be null.
  void (*outputs)(const KeptRows& rows, const float* values_K, const float* inputs_IT,
                  const float* bias_O, int64_t width_T, float* outputs_OT);
  /// Adds inputs_IT += W^T outputs_OT for one tile.
  void (*input_grads)(const KeptRows& rows, const float* values_K, const float* outputs_OT,
                      int64_t width_T, float* inputs_IT);
  /// Writes the kept elements of grads_OI (I = num_columns): the sum over all samples of output
  /// times input, added to the present value if `adds`.
  void (*weight_grads)(const KeptRows& rows, const Tiles& outputs, int64_t num_rows,
                       const Tiles& inputs, int64_t num_columns, bool adds, float* grads_OI);
};

/// Returns the kernels of a path that simd_paths() lists.
const KeptProducts& kept_products(SimdPath path);

/// Kept elements of a weight [O, I] with a mask that keeps few, in compressed sparse rows. Computes
/// a linear layer's products with them. All other elements are 0.
///
///   kept = KeptWeight::make(bits, O, I);  // after each change of the mask
///   values_K = kept->values_of(weight_OI);
///   outputs_BO = kept->outputs(values_K, inputs_BI, bias_O);
///   inputs_BI's gradient = kept->input_grads(values_K, grads_BO);
///   kept->write_grads(grads_BO, inputs_BI, /*adds=*/false, weight's gradient);
///
/// Symbols: B = samples, I = inputs, O = outputs, K = kept elements. Float32 on the CPU. Uses
/// ATen's threads. The order of each sum depends only on the mask and on B. So no bit depends on
/// threads or on the processor. The bits differ from those of dense products.
class KeptWeight {
 public:
  /// Largest share of kept elements for which this is faster than dense products, by measurement
  /// (bench/results/tried.md). kMostKeptOfMany: many samples, whose products are bound by
  /// arithmetic. kMostKeptOfFew: one sample, for which LibTorch is fast, or few with few_samples.h.
  static constexpr double kMostKept = 1.0 / 3, kMostKeptOfMany = 0.2, kMostKeptOfFew = 0.11;
  static constexpr int64_t kMany = 33;  ///< samples
  /// Smallest number of elements of a weight.
  static constexpr int64_t kLeastElements = 1 << 18;

  /// Creates the kept elements. bits: base/simd/bit_mask.h. Returns null if dense products are
  /// faster for every number of samples. Otherwise call pays() for each.
  static std::shared_ptr<const KeptWeight> make(const uint8_t* bits, int64_t num_rows,
                                                int64_t num_columns);
  KeptWeight(const uint8_t* bits, int64_t num_rows, int64_t num_columns);

  int64_t num_kept() const { return static_cast<int64_t>(columns_K_.size()); }
  /// True if this is faster than dense products for this number of samples.
  bool pays(int64_t num_samples) const;

  /// Gathers the kept values: [O, I] -> [K].
  at::Tensor values_of(const at::Tensor& weight_OI) const;
  /// Computes [B, I] -> [B, O]; bias_O may be undefined.
  at::Tensor outputs(const at::Tensor& values_K, const at::Tensor& inputs_BI,
                     const at::Tensor& bias_O, SimdPath path = fastest_simd_path()) const;
  /// Computes the inputs' gradient [B, O] -> [B, I].
  at::Tensor input_grads(const at::Tensor& values_K, const at::Tensor& grads_BO,
                         SimdPath path = fastest_simd_path()) const;
  /// Writes the kept elements of the contiguous grad_OI, or adds to them: the sum over the samples
  /// of the output's gradient times the input. The other elements become 0 at the first call and
  /// after note_dense_grad(), and stay unchanged otherwise. One call at a time per weight.
  void write_grads(const at::Tensor& grads_BO, const at::Tensor& inputs_BI, bool adds,
                   const at::Tensor& grad_OI, SimdPath path = fastest_simd_path()) const;
  /// Records that other code wrote the whole gradient.
  void note_dense_grad() const { others_are_zero_ = false; }

 private:
  void zero_others(const at::Tensor& grad_OI) const;
  KeptRows rows(int64_t begin_O, int64_t end_O) const {
    return {begin_O, end_O, begins_.data(), begins_.data() + 1, columns_K_.data()};
  }
  /// Begin and end of each row's kept elements within some columns.
  struct Columns {
    std::vector<int64_t> begins, ends;
  };
  Columns columns(int64_t begin_I, int64_t end_I) const;
  /// Calls function(begin_O, end_O) on several threads, with enough rows for each.
  template <typename Function>
  void for_rows(int64_t num_samples, const Function& function) const;

  const int64_t num_rows_, num_columns_;
  std::vector<int64_t> begins_;  // begin of each row, and the end
  std::vector<uint32_t> columns_K_;
  mutable bool others_are_zero_ = false;  // of the gradient's other elements
};

}  // namespace lockstep::model
