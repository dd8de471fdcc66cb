#include "model/linear/few_samples.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::model::few_samples {

#if defined(__x86_64__)

namespace {

#define LOCKSTEP_FMA __attribute__((target("avx2,fma")))
#define LOCKSTEP_FMA_LOOP LOCKSTEP_FMA inline __attribute__((always_inline))

/// Floats of one AVX register.
constexpr int64_t kLanes = 8;
/// Prefetch distance along each row (a stream of memory), and elements of a cache line.
constexpr int64_t kAheadItems = 256, kLineItems = 16;

/// Adds one column of the weight: kNum vectors of 8 samples, kRows rows.
template <int kNum, int kRows>
LOCKSTEP_FMA_LOOP void add_column(const float* const (&rows)[kRows], int64_t i,
                                  const float* inputs_T, __m256 (&sums)[kRows][kNum]) {
  __m256 inputs[kNum];
  for (int v = 0; v < kNum; ++v) inputs[v] = _mm256_loadu_ps(inputs_T + v * kLanes);
  for (int r = 0; r < kRows; ++r) {
    const __m256 weight = _mm256_broadcast_ss(rows[r] + i);
    for (int v = 0; v < kNum; ++v) sums[r][v] = _mm256_fmadd_ps(weight, inputs[v], sums[r][v]);
  }
}

/// Computes kRows outputs, starting with their bias. Sums run over the inputs in ascending order.
template <int kNum, int kRows>
LOCKSTEP_FMA_LOOP void outputs_of(int64_t o, int64_t num_columns, const float* weight_OI,
                                  const float* inputs_IT, const float* bias_O, float* outputs_OT) {
  constexpr int64_t kWidth = kNum * kLanes;
  __m256 sums[kRows][kNum];
  const float* rows[kRows];
  for (int r = 0; r < kRows; ++r) {
    rows[r] = weight_OI + (o + r) * num_columns;
    for (int v = 0; v < kNum; ++v)
      sums[r][v] = _mm256_set1_ps(bias_O == nullptr ? 0 : bias_O[o + r]);
  }
  int64_t i = 0;
  for (; i + kLineItems <= num_columns; i += kLineItems) {
    // One prefetch per row and cache line: rows are separate streams.
    for (int r = 0; r < kRows; ++r) __builtin_prefetch(rows[r] + i + kAheadItems);
    for (int64_t item = i; item < i + kLineItems; ++item)
      add_column(rows, item, inputs_IT + kWidth * item, sums);
  }
  for (; i < num_columns; ++i) add_column(rows, i, inputs_IT + kWidth * i, sums);
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kNum; ++v)
      _mm256_storeu_ps(outputs_OT + kWidth * (o + r) + v * kLanes, sums[r][v]);
}

/// Computes the outputs of a tile. 8 sums at once hide the latency of the additions.
template <int kNum>
LOCKSTEP_FMA void outputs_in_tile(const Part& part, const float* weight_OI, const float* inputs_IT,
                                  const float* bias_O, float* outputs_OT) {
  constexpr int kRows = 8 / kNum;
  int64_t o = part.begin_O;
  for (; o + kRows <= part.end_O; o += kRows)
    outputs_of<kNum, kRows>(o, part.num_columns, weight_OI, inputs_IT, bias_O, outputs_OT);
  for (; o < part.end_O; ++o)
    outputs_of<kNum, 1>(o, part.num_columns, weight_OI, inputs_IT, bias_O, outputs_OT);
}

/// Adds kRows rows of the weight to the inputs' gradients of one tile.
template <int kNum, int kRows>
LOCKSTEP_FMA_LOOP void add_rows(int64_t o, const Part& part, const float* weight_OI,
                                const float* outputs_OT, float* inputs_IT) {
  constexpr int64_t kWidth = kNum * kLanes;
  __m256 outputs[kRows][kNum];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kNum; ++v)
      outputs[r][v] = _mm256_loadu_ps(outputs_OT + kWidth * (o + r) + v * kLanes);
  const float* const row = weight_OI + o * part.num_columns;
  for (int64_t i = part.begin_I; i < part.end_I; ++i) {
    if (i % kLineItems == 0)
      for (int r = 0; r < kRows; ++r)
        __builtin_prefetch(row + r * part.num_columns + i + kAheadItems);
    float* const inputs_T = inputs_IT + kWidth * i;
    __m256 sums[kNum];
    for (int v = 0; v < kNum; ++v) sums[v] = _mm256_loadu_ps(inputs_T + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const __m256 weight = _mm256_broadcast_ss(row + r * part.num_columns + i);
      for (int v = 0; v < kNum; ++v) sums[v] = _mm256_fmadd_ps(weight, outputs[r][v], sums[v]);
    }
    for (int v = 0; v < kNum; ++v) _mm256_storeu_ps(inputs_T + v * kLanes, sums[v]);
  }
}

template <int kNum>
LOCKSTEP_FMA void input_grads_in_tile(const Part& part, const float* weight_OI,
                                      const float* outputs_OT, float* inputs_IT) {
  constexpr int kRows = 8 / kNum;
  int64_t o = part.begin_O;
  for (; o + kRows <= part.end_O; o += kRows)
    add_rows<kNum, kRows>(o, part, weight_OI, outputs_OT, inputs_IT);
  for (; o < part.end_O; ++o) add_rows<kNum, 1>(o, part, weight_OI, outputs_OT, inputs_IT);
}

/// Adds products over all samples to two vectors of columns, for kRows rows.
template <int kRows>
LOCKSTEP_FMA_LOOP void products_of(const float* grads_BO, int64_t num_rows, const float* inputs_BI,
                                   int64_t num_columns, int64_t num_samples,
                                   __m256 (&sums)[kRows][2]) {
  for (int64_t b = 0; b < num_samples; ++b) {
    const __m256 left = _mm256_loadu_ps(inputs_BI + b * num_columns);
    const __m256 right = _mm256_loadu_ps(inputs_BI + b * num_columns + kLanes);
    for (int r = 0; r < kRows; ++r) {
      const __m256 grad = _mm256_broadcast_ss(grads_BO + b * num_rows + r);
      sums[r][0] = _mm256_fmadd_ps(grad, left, sums[r][0]);
      sums[r][1] = _mm256_fmadd_ps(grad, right, sums[r][1]);
    }
  }
}

/// Writes kRows rows of the weight's gradient, 16 columns at once.
template <int kRows>
LOCKSTEP_FMA_LOOP void write_rows(int64_t o, const Part& part, const float* grads_BO,
                                  int64_t num_rows, const float* inputs_BI, int64_t num_samples,
                                  bool adds, bool streams, float* grads_OI) {
  const int64_t num_columns = part.num_columns;
  int64_t i = 0;
  for (; i + 2 * kLanes <= num_columns; i += 2 * kLanes) {
    __m256 sums[kRows][2];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 2; ++v)
        sums[r][v] = adds ? _mm256_loadu_ps(grads_OI + (o + r) * num_columns + i + v * kLanes)
                          : _mm256_setzero_ps();
    products_of(grads_BO + o, num_rows, inputs_BI + i, num_columns, num_samples, sums);
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 2; ++v) {
        float* const to = grads_OI + (o + r) * num_columns + i + v * kLanes;
        streams ? _mm256_stream_ps(to, sums[r][v]) : _mm256_storeu_ps(to, sums[r][v]);
      }
  }
  for (; i < num_columns; ++i)
    // fmaf rounds once, as the vector instruction does: the bits do not depend on the column.
    for (int r = 0; r < kRows; ++r) {
      float& grad = grads_OI[(o + r) * num_columns + i];
      float sum = adds ? grad : 0;
      for (int64_t b = 0; b < num_samples; ++b)
        sum = __builtin_fmaf(grads_BO[b * num_rows + o + r], inputs_BI[b * num_columns + i], sum);
      grad = sum;
    }
}

}  // namespace

void outputs(const Part& part, const float* weight_OI, const float* inputs_IT, const float* bias_O,
             int64_t width_T, float* outputs_OT) {
  if (width_T == 8) return outputs_in_tile<1>(part, weight_OI, inputs_IT, bias_O, outputs_OT);
  outputs_in_tile<2>(part, weight_OI, inputs_IT, bias_O, outputs_OT);
}

void input_grads(const Part& part, const float* weight_OI, const float* outputs_OT, int64_t width_T,
                 float* inputs_IT) {
  if (width_T == 8) return input_grads_in_tile<1>(part, weight_OI, outputs_OT, inputs_IT);
  input_grads_in_tile<2>(part, weight_OI, outputs_OT, inputs_IT);
}

LOCKSTEP_FMA void write_grads(const Part& part, const float* grads_BO, int64_t num_rows,
                              const float* inputs_BI, int64_t num_samples, bool adds, bool streams,
                              float* grads_OI) {
  constexpr int64_t kVectorBytes = 32;
  const bool is_aligned =
      reinterpret_cast<uintptr_t>(grads_OI) % kVectorBytes == 0 && part.num_columns % kLanes == 0;
  streams = streams && is_aligned;
  constexpr int kRows = 6;  // 12 sums, 2 inputs, 1 gradient: 15 of 16 registers
  int64_t o = part.begin_O;
  for (; o + kRows <= part.end_O; o += kRows)
    write_rows<kRows>(o, part, grads_BO, num_rows, inputs_BI, num_samples, adds, streams, grads_OI);
  for (; o < part.end_O; ++o)
    write_rows<1>(o, part, grads_BO, num_rows, inputs_BI, num_samples, adds, streams, grads_OI);
  if (streams) _mm_sfence();
}

#else

// Never called: has_few_samples() is false without AVX2.
void outputs(const Part&, const float*, const float*, const float*, int64_t, float*) {}
void input_grads(const Part&, const float*, const float*, int64_t, float*) {}
void write_grads(const Part&, const float*, int64_t, const float*, int64_t, bool, bool, float*) {}

#endif

}  // namespace lockstep::model::few_samples
