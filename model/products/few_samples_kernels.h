#pragma once

#include <cstdint>

namespace lockstep::model::few_samples {

/// Part of a weight [O, I], of all its rows or of some.
struct Part {
  int64_t begin_O = 0, end_O = 0;
  int64_t begin_I = 0, end_I = 0;
  int64_t num_columns = 0;  ///< I
};

/// With AVX2 and FMA. Samples stand in one tile of 8 or 16 (model/products/tiles.h), in
/// write_grads() one behind the other.

/// outputs_OT = W inputs_IT + bias, of the part's rows and all columns; bias_O may be null.
void outputs(const Part& part, const float* weight_OI, const float* inputs_IT, const float* bias_O,
             int64_t width_T, float* outputs_OT);
/// inputs_IT += W^T outputs_OT, of the part's columns.
void input_grads(const Part& part, const float* weight_OI, const float* outputs_OT, int64_t width_T,
                 float* inputs_IT);
/// Of the part's rows and all columns. streams: grads_OI is large, and written past the caches.
void write_grads(const Part& part, const float* grads_BO, int64_t num_rows, const float* inputs_BI,
                 int64_t num_samples, bool adds, bool streams, float* grads_OI);

}  // namespace lockstep::model::few_samples
