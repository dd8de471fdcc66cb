#include "model/linear/few_samples.h"

#include <algorithm>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/simd/simd.h"
#include "model/linear/kept_weight.h"

namespace lockstep::model {

/// Kernels of these products for AVX2 and FMA. Samples are in one tile of 8 or 16
/// (model/linear/kept_weight.h), in write_grads() one after the other.
namespace few_samples {
namespace {

/// Part of a weight [O, I]: a range of rows and columns.
struct Part {
  int64_t begin_O = 0, end_O = 0;
  int64_t begin_I = 0, end_I = 0;
  int64_t num_columns = 0;  ///< I
};

#if defined(__x86_64__)

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

/// Computes outputs_OT = W inputs_IT + bias for the part's rows, all columns. bias_O may be null.
void outputs(const Part& part, const float* weight_OI, const float* inputs_IT, const float* bias_O,
             int64_t width_T, float* outputs_OT) {
  if (width_T == 8) return outputs_in_tile<1>(part, weight_OI, inputs_IT, bias_O, outputs_OT);
  outputs_in_tile<2>(part, weight_OI, inputs_IT, bias_O, outputs_OT);
}

/// Adds inputs_IT += W^T outputs_OT for the part's columns.
void input_grads(const Part& part, const float* weight_OI, const float* outputs_OT, int64_t width_T,
                 float* inputs_IT) {
  if (width_T == 8) return input_grads_in_tile<1>(part, weight_OI, outputs_OT, inputs_IT);
  input_grads_in_tile<2>(part, weight_OI, outputs_OT, inputs_IT);
}

/// Writes the part's rows, all columns. streams: grads_OI is large and bypasses the caches.
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

}  // namespace
}  // namespace few_samples

namespace {

constexpr int64_t kMostSamples = 16, kLeastElements = 1 << 20;
/// Smallest number of weight elements for a thread of its own.
constexpr int64_t kElementsOfAThread = 1 << 17;
/// Size in bytes from which a gradient is no longer in the caches when it is read again.
constexpr int64_t kStreamedBytes = 16 << 20;

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous();
}

/// Calls function(part) for parts of the rows of a weight, on several threads.
template <typename Function>
void for_rows(const Rows& rows, int64_t num_columns, const Function& function) {
  at::parallel_for(rows.begin, rows.end, std::max<int64_t>(1, kElementsOfAThread / num_columns),
                   [&](int64_t begin, int64_t end) {
                     function(few_samples::Part{begin, end, 0, num_columns, num_columns});
                   });
}

}  // namespace

bool few_samples_pay(int64_t num_samples, int64_t num_elements) {
  // One sample is excluded: LibTorch has a fast matrix-vector product.
  return num_samples > 1 && num_samples <= kMostSamples && num_elements >= kLeastElements &&
         fastest_simd_path() != SimdPath::kPortable;
}

bool has_few_samples(const at::Tensor& samples_BN, const at::Tensor& weight_OI) {
  return samples_BN.dim() == 2 && few_samples_pay(samples_BN.size(0), weight_OI.numel()) &&
         is_plain(samples_BN) && is_plain(weight_OI);
}

at::Tensor few_outputs(const at::Tensor& inputs_BI, const at::Tensor& weight_OI,
                       const at::Tensor& bias_O) {
  const int64_t num_samples = inputs_BI.size(0), width_T = tile_width(num_samples);
  const at::Tensor inputs = tiled(inputs_BI, width_T);
  const at::Tensor outputs = at::empty({1, weight_OI.size(0), width_T}, inputs.options());
  const float* const bias = bias_O.defined() ? bias_O.const_data_ptr<float>() : nullptr;
  for_rows({0, weight_OI.size(0)}, weight_OI.size(1), [&](const few_samples::Part& part) {
    few_samples::outputs(part, weight_OI.const_data_ptr<float>(), data_of(inputs, 0), bias, width_T,
                         data_of(outputs, 0));
  });
  return untiled(outputs, num_samples);
}

at::Tensor few_input_grads(const at::Tensor& grads_BO, const at::Tensor& weight_OI) {
  const int64_t num_samples = grads_BO.size(0), width_T = tile_width(num_samples);
  const int64_t num_rows = weight_OI.size(0), num_columns = weight_OI.size(1);
  const at::Tensor grads = tiled(grads_BO, width_T);
  // input_grads() adds to it.
  const at::Tensor inputs = at::zeros({1, num_columns, width_T}, grads.options());
  // Threads split the columns, not the rows: each sum over the rows stays in one thread.
  at::parallel_for(0, num_columns, std::max<int64_t>(64, kElementsOfAThread / num_rows),
                   [&](int64_t begin, int64_t end) {
                     few_samples::input_grads({0, num_rows, begin, end, num_columns},
                                              weight_OI.const_data_ptr<float>(), data_of(grads, 0),
                                              width_T, data_of(inputs, 0));
                   });
  return untiled(inputs, num_samples);
}

void write_few_grads(const at::Tensor& grads_BO, const at::Tensor& inputs_BI, bool adds,
                     const Rows& rows, const at::Tensor& grad_OI) {
  // Streaming stores bypass the caches; when adding, the lines are read anyway.
  const bool streams = !adds && static_cast<int64_t>(grad_OI.nbytes()) >= kStreamedBytes;
  for_rows(rows, grad_OI.size(1), [&](const few_samples::Part& part) {
    few_samples::write_grads(part, grads_BO.const_data_ptr<float>(), grad_OI.size(0),
                             inputs_BI.const_data_ptr<float>(), grads_BO.size(0), adds, streams,
                             grad_OI.mutable_data_ptr<float>());
  });
}

}  // namespace lockstep::model
