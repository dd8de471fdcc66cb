#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "model/linear/kept_weight.h"

/// Loops that each SIMD path compiles with its own instructions (kept_products_*.cpp), without
/// contraction (model/CMakeLists.txt). kNum: vectors of 8 samples in a tile.
namespace lockstep::model::loops {

using Floats8 = float __attribute__((vector_size(32)));
constexpr int64_t kLanes = 8;

#define LOCKSTEP_LOOP inline __attribute__((always_inline))

LOCKSTEP_LOOP void load(const float* from, Floats8* to) { std::memcpy(to, from, sizeof *to); }
LOCKSTEP_LOOP void store(const Floats8& from, float* to) { std::memcpy(to, &from, sizeof from); }

template <int kNum>
LOCKSTEP_LOOP void outputs(const KeptRows& rows, const float* values_K, const float* inputs_IT,
                           const float* bias_O, float* outputs_OT) {
  constexpr int64_t kWidth = kNum * kLanes;
  for (int64_t o = rows.begin_O; o < rows.end_O; ++o) {
    const float bias = bias_O == nullptr ? 0 : bias_O[o];
    std::array<Floats8, kNum> sums;
    for (Floats8& sum : sums) sum = Floats8{} + bias;
    for (int64_t k = rows.begins[o]; k < rows.ends[o]; ++k) {
      const float* const inputs_T = inputs_IT + kWidth * rows.columns_K[k];
      for (int v = 0; v < kNum; ++v) {
        Floats8 items;
        load(inputs_T + v * kLanes, &items);
        sums[v] += items * values_K[k];
      }
    }
    for (int v = 0; v < kNum; ++v) store(sums[v], outputs_OT + kWidth * o + v * kLanes);
  }
}

template <int kNum>
LOCKSTEP_LOOP void input_grads(const KeptRows& rows, const float* values_K, const float* outputs_OT,
                               float* inputs_IT) {
  constexpr int64_t kWidth = kNum * kLanes;
  for (int64_t o = rows.begin_O; o < rows.end_O; ++o) {
    std::array<Floats8, kNum> outputs_T;
    for (int v = 0; v < kNum; ++v) load(outputs_OT + kWidth * o + v * kLanes, &outputs_T[v]);
    for (int64_t k = rows.begins[o]; k < rows.ends[o]; ++k) {
      float* const inputs_T = inputs_IT + kWidth * rows.columns_K[k];
      for (int v = 0; v < kNum; ++v) {
        Floats8 sum;
        load(inputs_T + v * kLanes, &sum);
        sum += outputs_T[v] * values_K[k];
        store(sum, inputs_T + v * kLanes);
      }
    }
  }
}

/// Sum of the lanes, by halves.
LOCKSTEP_LOOP float sum_of(const Floats8& lanes) {
  const Floats8 fours = lanes + __builtin_shufflevector(lanes, lanes, 4, 5, 6, 7, 0, 1, 2, 3);
  const Floats8 twos = fours + __builtin_shufflevector(fours, fours, 2, 3, 0, 1, 6, 7, 4, 5);
  return twos[0] + twos[1];
}

template <int kNum>
LOCKSTEP_LOOP void weight_grads(const KeptRows& rows, const Tiles& outputs, int64_t num_rows,
                                const Tiles& inputs, int64_t num_columns, bool adds,
                                float* grads_OI) {
  constexpr int64_t kWidth = kNum * kLanes;
  for (int64_t o = rows.begin_O; o < rows.end_O; ++o)
    for (int64_t k = rows.begins[o]; k < rows.ends[o]; ++k) {
      const int64_t column = rows.columns_K[k];
      Floats8 sums{};
      for (int64_t tile = 0; tile < inputs.num_tiles; ++tile) {
        const float* const outputs_T = outputs.items + kWidth * (tile * num_rows + o);
        const float* const inputs_T = inputs.items + kWidth * (tile * num_columns + column);
        for (int v = 0; v < kNum; ++v) {
          Floats8 one, other;
          load(outputs_T + v * kLanes, &one);
          load(inputs_T + v * kLanes, &other);
          sums += one * other;
        }
      }
      float& grad = grads_OI[o * num_columns + column];
      grad = adds ? grad + sum_of(sums) : sum_of(sums);
    }
}

}  // namespace lockstep::model::loops

/// Defines the functions of one path and their table `kKernels`. target: attribute of the
/// functions.
// NOLINTBEGIN(bugprone-macro-parentheses): an attribute takes no parentheses around it
#define LOCKSTEP_KEPT_PRODUCTS(target)                                                             \
  target void outputs(const KeptRows& rows, const float* values_K, const float* inputs_IT,         \
                      const float* bias_O, int64_t width_T, float* outputs_OT) {                   \
    if (width_T == 8) return loops::outputs<1>(rows, values_K, inputs_IT, bias_O, outputs_OT);     \
    if (width_T == 16) return loops::outputs<2>(rows, values_K, inputs_IT, bias_O, outputs_OT);    \
    loops::outputs<4>(rows, values_K, inputs_IT, bias_O, outputs_OT);                              \
  }                                                                                                \
  target void input_grads(const KeptRows& rows, const float* values_K, const float* outputs_OT,    \
                          int64_t width_T, float* inputs_IT) {                                     \
    if (width_T == 8) return loops::input_grads<1>(rows, values_K, outputs_OT, inputs_IT);         \
    if (width_T == 16) return loops::input_grads<2>(rows, values_K, outputs_OT, inputs_IT);        \
    loops::input_grads<4>(rows, values_K, outputs_OT, inputs_IT);                                  \
  }                                                                                                \
  target void weight_grads(const KeptRows& rows, const Tiles& from, int64_t num_rows,              \
                           const Tiles& inputs, int64_t num_columns, bool adds, float* grads_OI) { \
    if (inputs.width_T == 8)                                                                       \
      return loops::weight_grads<1>(rows, from, num_rows, inputs, num_columns, adds, grads_OI);    \
    if (inputs.width_T == 16)                                                                      \
      return loops::weight_grads<2>(rows, from, num_rows, inputs, num_columns, adds, grads_OI);    \
    loops::weight_grads<4>(rows, from, num_rows, inputs, num_columns, adds, grads_OI);             \
  }                                                                                                \
  constexpr KeptProducts kKernels{outputs, input_grads, weight_grads};
// NOLINTEND(bugprone-macro-parentheses)
