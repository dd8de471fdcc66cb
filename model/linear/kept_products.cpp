// Kernels of KeptProducts, without contraction to FMA (lockstep_kernels() in CMake), so that all
// targets give the same bits.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/linear/kept_products.cpp"
#include "base/simd/targets.h"

#include <array>
#include <cstring>
#include <type_traits>

#include <hwy/highway.h>

#include "model/linear/kept_weight.h"

HWY_BEFORE_NAMESPACE();

namespace lockstep::model::HWY_NAMESPACE {
namespace {

using Floats8 = float __attribute__((vector_size(32)));
constexpr int64_t kLanes = 8;

HWY_INLINE void load(const float* from, Floats8* to) { std::memcpy(to, from, sizeof *to); }
HWY_INLINE void store(const Floats8& from, float* to) { std::memcpy(to, &from, sizeof from); }

/// Calls function with a tile's number of vectors of 8 samples as a constant.
template <typename Function>
HWY_INLINE void with_vectors(int64_t width_T, const Function& function) {
  if (width_T == 8) return function(std::integral_constant<int, 1>());
  if (width_T == 16) return function(std::integral_constant<int, 2>());
  function(std::integral_constant<int, 4>());
}

void outputs(const KeptRows& rows, const float* values_K, const float* inputs_IT,
             const float* bias_O, int64_t width_T, float* outputs_OT) {
  with_vectors(width_T, [&](auto num) {
    constexpr int64_t kWidth = num * kLanes;
    for (int64_t o = rows.begin_O; o < rows.end_O; ++o) {
      const float bias = bias_O == nullptr ? 0 : bias_O[o];
      std::array<Floats8, num> sums;
      for (Floats8& sum : sums) sum = Floats8{} + bias;
      for (int64_t k = rows.begins[o]; k < rows.ends[o]; ++k) {
        const float* const inputs_T = inputs_IT + kWidth * rows.columns_K[k];
        for (int v = 0; v < num; ++v) {
          Floats8 items;
          load(inputs_T + v * kLanes, &items);
          sums[v] += items * values_K[k];
        }
      }
      for (int v = 0; v < num; ++v) store(sums[v], outputs_OT + kWidth * o + v * kLanes);
    }
  });
}

void input_grads(const KeptRows& rows, const float* values_K, const float* outputs_OT,
                 int64_t width_T, float* inputs_IT) {
  with_vectors(width_T, [&](auto num) {
    constexpr int64_t kWidth = num * kLanes;
    for (int64_t o = rows.begin_O; o < rows.end_O; ++o) {
      std::array<Floats8, num> outputs_T;
      for (int v = 0; v < num; ++v) load(outputs_OT + kWidth * o + v * kLanes, &outputs_T[v]);
      for (int64_t k = rows.begins[o]; k < rows.ends[o]; ++k) {
        float* const inputs_T = inputs_IT + kWidth * rows.columns_K[k];
        for (int v = 0; v < num; ++v) {
          Floats8 sum;
          load(inputs_T + v * kLanes, &sum);
          sum += outputs_T[v] * values_K[k];
          store(sum, inputs_T + v * kLanes);
        }
      }
    }
  });
}

/// Sum of the lanes, by halves.
HWY_INLINE float sum_of(const Floats8& lanes) {
  const Floats8 fours = lanes + __builtin_shufflevector(lanes, lanes, 4, 5, 6, 7, 0, 1, 2, 3);
  const Floats8 twos = fours + __builtin_shufflevector(fours, fours, 2, 3, 0, 1, 6, 7, 4, 5);
  return twos[0] + twos[1];
}

template <int kNum>
HWY_INLINE void weight_grads_of(const KeptRows& rows, const Tiles& grads, int64_t num_rows,
                                const Tiles& inputs, int64_t num_columns, bool adds,
                                float* grads_OI) {
  constexpr int64_t kWidth = kNum * kLanes;
  for (int64_t o = rows.begin_O; o < rows.end_O; ++o)
    for (int64_t k = rows.begins[o]; k < rows.ends[o]; ++k) {
      const int64_t column = rows.columns_K[k];
      Floats8 sums{};
      for (int64_t tile = 0; tile < inputs.num_tiles; ++tile) {
        const float* const grads_T = grads.items + kWidth * (tile * num_rows + o);
        const float* const inputs_T = inputs.items + kWidth * (tile * num_columns + column);
        for (int v = 0; v < kNum; ++v) {
          Floats8 one, other;
          load(grads_T + v * kLanes, &one);
          load(inputs_T + v * kLanes, &other);
          sums += one * other;
        }
      }
      float& grad = grads_OI[o * num_columns + column];
      grad = adds ? grad + sum_of(sums) : sum_of(sums);
    }
}

void weight_grads(const KeptRows& rows, const Tiles& grads, int64_t num_rows, const Tiles& inputs,
                  int64_t num_columns, bool adds, float* grads_OI) {
  with_vectors(inputs.width_T, [&](auto num) {
    weight_grads_of<num>(rows, grads, num_rows, inputs, num_columns, adds, grads_OI);
  });
}

constexpr KeptProducts kKernels{outputs, input_grads, weight_grads};

}  // namespace
}  // namespace lockstep::model::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lockstep::model {

const KeptProducts& kept_products(SimdPath path) { return LOCKSTEP_OF_PATH(path, kKernels); }

}  // namespace lockstep::model

#endif
