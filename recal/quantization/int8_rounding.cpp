#include "recal/quantization/int8_rounding.h"

#include <tuple>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/fake_quantize_per_channel_affine.h>
#include <ATen/ops/fake_quantize_per_tensor_affine.h>
#include <ATen/ops/fake_quantize_per_tensor_affine_cachemask.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "recal/quantization/int8_kernels.h"

namespace lockstep::recal {
// Two implementations with equal bits: kernels for contiguous float32 on the CPU, ATen for the
// rest. Both are wrapped in autograd functions, whose backward passes gradients straight through.
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;
using torch::autograd::Variable;

constexpr int64_t kGrainItems = 1 << 15;  // least work of a thread, in elements

bool has_kernels(const at::Tensor& values) {
  return values.is_cpu() && values.scalar_type() == at::kFloat && values.is_contiguous();
}

/// 0 where an element is finite, else NaN.
at::Tensor fault_of(const at::Tensor& values) { return values.sub(values); }

struct Rounded {
  at::Tensor values;
  at::Tensor inside;  // bool
};

Rounded round_by_kernel(const at::Tensor& input, InputScale by) {
  const Rounded result{at::empty_like(input), at::empty(input.sizes(), at::kBool)};
  const Rounding rounding{by.scale, static_cast<float>(by.zero_point), 0, kInputQuantMax};
  const auto* items = input.const_data_ptr<float>();
  auto* out = result.values.mutable_data_ptr<float>();
  auto* inside = result.inside.mutable_data_ptr<bool>();
  at::parallel_for(0, input.numel(), kGrainItems, [&](int64_t begin, int64_t end) {
    round_items(items + begin, end - begin, rounding, out + begin, inside + begin);
  });
  return result;
}

Rounded round_by_aten(const at::Tensor& input, InputScale by) {
  auto [values, inside] = at::fake_quantize_per_tensor_affine_cachemask(
      input, by.scale, by.zero_point, 0, kInputQuantMax);
  return {values.add_(fault_of(input)), inside};
}

at::Tensor gradient_inside(const at::Tensor& gradient, const at::Tensor& inside) {
  // The kernels of this folder read rows of memory: other layouts use ATen's product.
  if (!has_kernels(gradient) || !inside.is_contiguous()) return gradient.mul(inside);
  at::Tensor kept = at::empty_like(gradient);
  const auto* items = gradient.const_data_ptr<float>();
  const auto* flags = inside.const_data_ptr<bool>();
  auto* out = kept.mutable_data_ptr<float>();
  at::parallel_for(0, gradient.numel(), kGrainItems, [&](int64_t begin, int64_t end) {
    keep_inside(items + begin, flags + begin, end - begin, out + begin);
  });
  return kept;
}

struct RoundInput : torch::autograd::Function<RoundInput> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, double scale,
                            int64_t zero_point) {
    const InputScale by{static_cast<float>(scale), static_cast<int32_t>(zero_point)};
    const Rounded rounded =
        has_kernels(input) ? round_by_kernel(input, by) : round_by_aten(input, by);
    // Backward needs one byte per element, not the input itself.
    context->save_for_backward({rounded.inside});
    return rounded.values;
  }
  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    return {gradient_inside(gradients[0], context->get_saved_variables()[0]), Variable(),
            Variable()};
  }
};

/// Rounds the rows of a weight; the elements of a row share a scale.
void round_rows(const at::Tensor& weight_OX, const at::Tensor& scales, at::Tensor* out_OX) {
  const int64_t num_rows = scales.numel();
  const int64_t num_items = weight_OX.numel() / num_rows;
  const auto* items = weight_OX.const_data_ptr<float>();
  const auto* scale = scales.const_data_ptr<float>();
  auto* out = out_OX->mutable_data_ptr<float>();
  at::parallel_for(0, num_rows, 1 + kGrainItems / (1 + num_items), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      round_items(items + row * num_items, num_items,
                  {scale[row], 0, -kWeightQuantMax, kWeightQuantMax}, out + row * num_items);
  });
}

at::Tensor round_weight_by_aten(const at::Tensor& weight_OX, const at::Tensor& scales) {
  const at::Tensor zero_points = at::zeros(scales.sizes(), scales.options().dtype(at::kInt));
  return scales.numel() == weight_OX.size(0)
             ? at::fake_quantize_per_channel_affine(weight_OX, scales, zero_points, 0,
                                                    -kWeightQuantMax, kWeightQuantMax)
             : at::fake_quantize_per_tensor_affine(weight_OX, scales, zero_points, -kWeightQuantMax,
                                                   kWeightQuantMax);
}

/// Straight-through estimator: the gradient passes unchanged.
struct RoundWeight : torch::autograd::Function<RoundWeight> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& weight_OX,
                            const at::Tensor& scales) {
    if (!has_kernels(weight_OX)) return round_weight_by_aten(weight_OX, scales);
    at::Tensor rounded = at::empty_like(weight_OX);
    round_rows(weight_OX, scales, &rounded);
    return rounded;
  }
  static tensor_list backward(AutogradContext*, const tensor_list& gradients) {
    return {gradients[0], Variable()};
  }
};

}  // namespace

at::Tensor round_input(const at::Tensor& input, InputScale by) {
  return RoundInput::apply(input, static_cast<double>(by.scale),
                           static_cast<int64_t>(by.zero_point));
}

at::Tensor round_weight(const at::Tensor& weight_OX, const at::Tensor& scales) {
  return RoundWeight::apply(weight_OX, scales);
}

}  // namespace lockstep::recal
