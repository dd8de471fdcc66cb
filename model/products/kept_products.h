#pragma once

#include <cstdint>

#include "base/bits/simd.h"
#include "model/products/tiles.h"

namespace lockstep::model {

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

const KeptProducts& portable_kept_products();
const KeptProducts& avx2_kept_products();

}  // namespace lockstep::model
