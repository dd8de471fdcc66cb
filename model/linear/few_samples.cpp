#include "model/linear/few_samples.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/simd/simd.h"
#include "model/linear/kept_weight.h"

namespace lockstep::model {
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
