#pragma once

#include <cstring>

#include "data/images/pixel_kernels.h"

/// The loops of PixelKernels. Each path compiles them for itself, without contraction, so that the
/// bits are the same.
namespace lockstep::data::pixel_loops {

#define LOCKSTEP_PIXEL_LOOP inline __attribute__((always_inline)) void

LOCKSTEP_PIXEL_LOOP scale(const uint8_t* __restrict in, int64_t num, float by, float shift,
                          float* __restrict out) {
  for (int64_t i = 0; i < num; ++i) out[i] = static_cast<float>(in[i]) * by + shift;
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

/// (p wp + q wq) + (r wr + s ws) of four rows, from column `begin` on.
LOCKSTEP_PIXEL_LOOP add_rows(const uint8_t* const* rows, const float* weights, int64_t begin,
                             int64_t num, bool adds, float* __restrict out) {
  const uint8_t* __restrict p = rows[0], * __restrict q = rows[1], * __restrict r = rows[2], * __restrict s = rows[3];
  const float wp = weights[0], wq = weights[1], wr = weights[2], ws = weights[3];
  for (int64_t i = begin; i < num; ++i) {
    const float sum = (static_cast<float>(p[i]) * wp + static_cast<float>(q[i]) * wq) +
                      (static_cast<float>(r[i]) * wr + static_cast<float>(s[i]) * ws);
    out[i] = adds ? out[i] + sum : sum;
  }
}

LOCKSTEP_PIXEL_LOOP columns_1(const float* in, const Taps& taps, int64_t num_out, float by,
                              float shift, float* out) {
  const float* weights = taps.weights.data();
  for (int64_t x = 0; x < num_out; ++x, weights += taps.num_taps) {
    const float* from = in + taps.firsts[static_cast<size_t>(x)];
    float sum = 0;
    for (int64_t k = 0; k < taps.num_taps; ++k) sum += from[k] * weights[k];
    out[x] = sum * by + shift;
  }
}

using Eight = float __attribute__((vector_size(32)));

/// Sum of so many pairs of pixels, whose weights lie as Taps::pairs. The number is a constant where
/// it is small, so that there is no loop.
LOCKSTEP_PIXEL_LOOP sum_pairs(const float* in, const float* weights, int64_t num_pairs,
                              Eight* sum) {
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    Eight values, weight;
    std::memcpy(&values, in + 6 * pair, sizeof values);
    std::memcpy(&weight, weights + 8 * pair, sizeof weight);
    *sum += values * weight;
  }
}

/// Two pixels of three channels at a time in one vector, whose halves are added at the end.
LOCKSTEP_PIXEL_LOOP columns_3_of(int64_t num_pairs, const float* in, const Taps& taps,
                                 int64_t num_out, const float* scales, const float* shifts,
                                 float* const* outs) {
  const Eight by{scales[0], scales[1], scales[2]}, add{shifts[0], shifts[1], shifts[2]};
  const float* weights = taps.pairs.data();
  const int32_t* firsts = taps.firsts.data();
  float* __restrict a = outs[0], * __restrict b = outs[1], * __restrict c = outs[2];
  for (int64_t x = 0; x < num_out; ++x, weights += 8 * num_pairs) {
    Eight sum{};
    sum_pairs(in + 3 * int64_t{firsts[x]}, weights, num_pairs, &sum);
    sum += __builtin_shufflevector(sum, sum, 3, 4, 5, 3, 4, 5, 6, 7);
    sum = sum * by + add;
    a[x] = sum[0];
    b[x] = sum[1];
    c[x] = sum[2];
  }
}

LOCKSTEP_PIXEL_LOOP columns_3(const float* in, const Taps& taps, int64_t num_out,
                              const float* scales, const float* shifts, float* const* outs) {
  switch (const int64_t num_pairs = (taps.num_taps + 1) / 2) {
    case 1:
      return columns_3_of(1, in, taps, num_out, scales, shifts, outs);
    case 2:
      return columns_3_of(2, in, taps, num_out, scales, shifts, outs);
    case 3:
      return columns_3_of(3, in, taps, num_out, scales, shifts, outs);
    default:
      columns_3_of(num_pairs, in, taps, num_out, scales, shifts, outs);
  }
}

}  // namespace lockstep::data::pixel_loops

/// The kernels of one path out of the loops above, but for add_rows; `target` is the attribute of
/// its functions.
// NOLINTBEGIN(bugprone-macro-parentheses): an attribute takes no parentheses around it
#define LOCKSTEP_PIXEL_KERNELS(target)                                                             \
  target void scale(const uint8_t* in, int64_t num, float by, float shift, float* out) {           \
    pixel_loops::scale(in, num, by, shift, out);                                                   \
  }                                                                                                \
  target void scale_3(const uint8_t* in, int64_t num, const float* scales, const float* shifts,    \
                      float* const* outs) {                                                        \
    pixel_loops::scale_3(in, num, scales, shifts, outs);                                           \
  }                                                                                                \
  target void columns_1(const float* in, const Taps& taps, int64_t num_out, float by, float shift, \
                        float* out) {                                                              \
    pixel_loops::columns_1(in, taps, num_out, by, shift, out);                                     \
  }                                                                                                \
  target void columns_3(const float* in, const Taps& taps, int64_t num_out, const float* scales,   \
                        const float* shifts, float* const* outs) {                                 \
    pixel_loops::columns_3(in, taps, num_out, scales, shifts, outs);                               \
  }
// NOLINTEND(bugprone-macro-parentheses)
