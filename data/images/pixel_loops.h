#pragma once

#include <cstring>

#include "data/images/pixel_kernels.h"

/// Loops of PixelKernels. Each path compiles them for its own instruction set, without contraction
/// (FMA), so that all give the same bits.
namespace lockstep::data::pixel_loops {

#define LOCKSTEP_PIXEL_LOOP inline __attribute__((always_inline)) void

/// Scales from place `begin` on.
LOCKSTEP_PIXEL_LOOP scale(const uint8_t* __restrict in, int64_t begin, int64_t num, float by,
                          float shift, float* __restrict out) {
  for (int64_t i = begin; i < num; ++i) out[i] = static_cast<float>(in[i]) * by + shift;
}

/// Scales up to ChannelNumbers::kNum values.
LOCKSTEP_PIXEL_LOOP scale_rest(const uint8_t* __restrict in, int64_t num, const ChannelNumbers& by,
                               float* __restrict out) {
  for (int64_t i = 0; i < num; ++i)
    out[i] = static_cast<float>(in[i]) * by.scales[static_cast<size_t>(i)] +
             by.shifts[static_cast<size_t>(i)];
}

LOCKSTEP_PIXEL_LOOP scale_3(const uint8_t* __restrict in, int64_t num_pixels, const float* scales,
                            const float* shifts, float* const* outs) {
  float* __restrict a = outs[0], * __restrict b = outs[1], * __restrict c = outs[2];
  const float scale_a = scales[0], scale_b = scales[1], scale_c = scales[2];
  const float shift_a = shifts[0], shift_b = shifts[1], shift_c = shifts[2];
  for (int64_t i = 0; i < num_pixels; ++i) {
    a[i] = static_cast<float>(in[3 * i]) * scale_a + shift_a;
    b[i] = static_cast<float>(in[3 * i + 1]) * scale_b + shift_b;
    c[i] = static_cast<float>(in[3 * i + 2]) * scale_c + shift_c;
  }
}

using Eight = float __attribute__((vector_size(32)));
using Sixteen = float __attribute__((vector_size(64)));

template <typename Vector>
LOCKSTEP_PIXEL_LOOP load(const float* from, Vector* vector) {
  std::memcpy(vector, from, sizeof *vector);
}

/// Blends with a constant number of rows if it is small, so that weights stay in registers.
template <typename Vector>
LOCKSTEP_PIXEL_LOOP blend_rows_of(int64_t num_rows, const float* const* rows, const float* weights,
                                  int64_t num, float* out) {
  constexpr int64_t kLanes = sizeof(Vector) / sizeof(float);
  int64_t i = 0;
  for (; i + kLanes <= num; i += kLanes) {
    Vector sum{}, values{};
    for (int64_t k = 0; k < num_rows; ++k) {
      load(rows[k] + i, &values);
      sum = k == 0 ? values * weights[0] : sum + values * weights[k];
    }
    std::memcpy(out + i, &sum, sizeof sum);
  }
  for (; i < num; ++i) {
    float sum = rows[0][i] * weights[0];
    for (int64_t k = 1; k < num_rows; ++k) sum += rows[k][i] * weights[k];
    out[i] = sum;
  }
}

template <typename Vector>
LOCKSTEP_PIXEL_LOOP blend_rows(const float* const* rows, const float* weights, int64_t num_rows,
                               int64_t num, float* out) {
  switch (num_rows) {
    case 2:
      return blend_rows_of<Vector>(2, rows, weights, num, out);
    case 3:
      return blend_rows_of<Vector>(3, rows, weights, num, out);
    case 4:
      return blend_rows_of<Vector>(4, rows, weights, num, out);
    case 5:
      return blend_rows_of<Vector>(5, rows, weights, num, out);
    case 6:
      return blend_rows_of<Vector>(6, rows, weights, num, out);
    default:
      blend_rows_of<Vector>(num_rows, rows, weights, num, out);
  }
}

LOCKSTEP_PIXEL_LOOP columns_1(const float* in, const Taps& taps, int64_t num_out, float* out) {
  const float* weights = taps.weights.data();
  for (int64_t x = 0; x < num_out; ++x, weights += taps.num_taps) {
    const float* from = in + taps.firsts[static_cast<size_t>(x)];
    float sum = 0;
    for (int64_t k = 0; k < taps.num_taps; ++k) sum += from[k] * weights[k];
    out[x] = sum;
  }
}

/// Computes columns with two pixels of three channels per vector; its halves are added at the end.
/// A small number of pairs is a constant, so that the compiler unrolls the loop.
LOCKSTEP_PIXEL_LOOP columns_3_of(int64_t num_pairs, const float* in, const Taps& taps,
                                 int64_t begin, int64_t num_out, float* const* outs) {
  const float* pairs = taps.pairs.data();
  const int32_t* firsts = taps.firsts.data();
  float* __restrict a = outs[0], * __restrict b = outs[1], * __restrict c = outs[2];
  for (int64_t x = begin; x < num_out; ++x) {
    const float* from = in + 3 * int64_t{firsts[x]};
    const float* weights = pairs + (x / 2 * num_pairs * 2 + x % 2) * 8;
    Eight sum{}, values{}, weight{};
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
      load(from + 6 * pair, &values);
      load(weights + 16 * pair, &weight);
      sum = pair == 0 ? values * weight : sum + values * weight;
    }
    sum += __builtin_shufflevector(sum, sum, 3, 4, 5, 3, 4, 5, 6, 7);
    a[x] = sum[0];
    b[x] = sum[1];
    c[x] = sum[2];
  }
}

/// Computes from output `begin` on.
LOCKSTEP_PIXEL_LOOP columns_3(const float* in, const Taps& taps, int64_t begin, int64_t num_out,
                              float* const* outs) {
  switch (const int64_t num_pairs = taps.num_pairs()) {
    case 1:
      return columns_3_of(1, in, taps, begin, num_out, outs);
    case 2:
      return columns_3_of(2, in, taps, begin, num_out, outs);
    case 3:
      return columns_3_of(3, in, taps, begin, num_out, outs);
    default:
      columns_3_of(num_pairs, in, taps, begin, num_out, outs);
  }
}

}  // namespace lockstep::data::pixel_loops

/// Defines one path's kernels from the loops above with vectors of this type; `target` is the
/// attribute of its functions.
// NOLINTBEGIN(bugprone-macro-parentheses): an attribute takes no parentheses around it
#define LOCKSTEP_PIXEL_KERNELS(target, Vector)                                                  \
  target void scale_3(const uint8_t* in, int64_t num, const float* scales, const float* shifts, \
                      float* const* outs) {                                                     \
    pixel_loops::scale_3(in, num, scales, shifts, outs);                                        \
  }                                                                                             \
  target void blend_rows(const float* const* rows, const float* weights, int64_t num_rows,      \
                         int64_t num, float* out) {                                             \
    pixel_loops::blend_rows<Vector>(rows, weights, num_rows, num, out);                         \
  }                                                                                             \
  target void columns_1(const float* in, const Taps& taps, int64_t num_out, float* out) {       \
    pixel_loops::columns_1(in, taps, num_out, out);                                             \
  }
// NOLINTEND(bugprone-macro-parentheses)
