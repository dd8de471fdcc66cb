#pragma once

#include <cstdint>

#include "base/bits/simd.h"
#include "model/products/tiles.h"

namespace lockstep::model {

/// The kept elements of some rows of a weight [O, I], or of some columns of these: those of row o
/// stand at begins[o] to ends[o], ascending, in these columns.
struct KeptRows {
  int64_t begin_O = 0, end_O = 0;  ///< the rows to walk
  const int64_t* begins = nullptr;
  const int64_t* ends = nullptr;
  const uint32_t* columns_K = nullptr;
};

/// One implementation of products with the kept elements of a weight, whose values are values_K.
/// Every sum runs over the kept elements in their order, or over the samples in groups of 8: the
/// same bits on every path, for every width of the tiles.
struct KeptProducts {
  /// outputs_OT = W inputs_IT + bias, of one tile. bias_O may be null.
  void (*outputs)(const KeptRows& rows, const float* values_K, const float* inputs_IT,
                  const float* bias_O, int64_t width_T, float* outputs_OT);
  /// inputs_IT += W^T outputs_OT, of one tile.
  void (*input_grads)(const KeptRows& rows, const float* values_K, const float* outputs_OT,
                      int64_t width_T, float* inputs_IT);
  /// Kept elements of grads_OI, I = num_columns: the sum over all samples of output times input,
  /// added to what stands there if `adds`.
  void (*weight_grads)(const KeptRows& rows, const Tiles& outputs, int64_t num_rows,
                       const Tiles& inputs, int64_t num_columns, bool adds, float* grads_OI);
};

/// The kernels of a path that simd_paths() lists.
const KeptProducts& kept_products(SimdPath path);

const KeptProducts& portable_kept_products();
const KeptProducts& avx2_kept_products();

}  // namespace lockstep::model
