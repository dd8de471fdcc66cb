#pragma once

#include <cstdint>

namespace lockstep::model::few_samples {

/// Part of a weight [O, I]: a range of rows and columns.
struct Part {
  int64_t begin_O = 0, end_O = 0;
  int64_t begin_I = 0, end_I = 0;
  int64_t num_columns = 0;  ///< I
};

/// Kernels for AVX2 and FMA. Samples are in one tile of 8 or 16 (model/products/tiles.h), in
/// write_grads() one after the other.

/// Computes outputs_OT = W inputs_IT + bias for the part's rows and all columns. bias_O may be
/// null.
void outputs(const Part& part, const float* weight_OI, const float* inputs_IT, const float* bias_O,
             int64_t width_T, float* outputs_OT);
/// Adds inputs_IT += W^T outputs_OT for the part's columns.
void input_grads(const Part& part, const float* weight_OI, const float* outputs_OT, int64_t width_T,
                 float* inputs_IT);
/// Writes the part's rows, all columns. streams: grads_OI is large and bypasses the caches.
void write_grads(const Part& part, const float* grads_BO, int64_t num_rows, const float* inputs_BI,
                 int64_t num_samples, bool adds, bool streams, float* grads_OI);

}  // namespace lockstep::model::few_samples
