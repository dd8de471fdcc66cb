#include "recal/quantization/int8_rounding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/fake_quantize_per_channel_affine.h>
#include <ATen/ops/fake_quantize_per_tensor_affine.h>
#include <ATen/ops/fake_quantize_per_tensor_affine_cachemask.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

// Scales of int8 quantization, and rounding with kernels or ATen.
namespace lockstep::recal {
namespace {

/// Reshapes [O] to [O, 1, ...], so that it broadcasts over a weight. [1] for one scale.
at::Tensor beside(const at::Tensor& scales, const at::Tensor& weight_OX) {
  std::vector<int64_t> shape(static_cast<size_t>(weight_OX.dim()), 1);
  shape[0] = scales.numel();
  return scales.view(shape);
}

// The bits equal those of ATen's fake_quantize_*: the same operations in the same order.

/// Parameters of one rounding: q = round(item / scale) + zero_point, limited to [lowest, highest].
struct Rounding {
  float scale = 1;
  float zero_point = 0;  ///< an integer
  float lowest = 0, highest = 0;
};

/// Block size. Every compiler vectorises loops with a constant count and one simple statement. The
/// remaining items are copied into a padded block.
constexpr int64_t kBlockItems = 16;
using Floats = std::array<float, kBlockItems>;
using Flags = std::array<bool, kBlockItems>;

/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, for magnitudes up
/// to 2^22. Source: IEEE 754, rounding of sums.
constexpr float kRounder = 12582912.0F;

struct Rounder {
  explicit Rounder(const Rounding& rounding)
      : inverse(1.0F / rounding.scale),
        scale(rounding.scale),
        lowest(rounding.lowest - rounding.zero_point),
        highest(rounding.highest - rounding.zero_point) {}

  float inverse, scale, lowest, highest;
};

/// Limits a value to a range. NaN stays NaN: both comparisons are false.
float cut(float value, float lowest, float highest) {
  value = value < lowest ? lowest : value;
  return value > highest ? highest : value;
}

/// Rounds to steps relative to the zero point. Values outside the range are first limited to one
/// step outside. That keeps kRounder exact, and compare_block() still sees them as outside.
Floats steps_of(const float* items, const Rounder& by) {
  Floats steps;
  for (int64_t i = 0; i < kBlockItems; ++i)
    steps[i] = cut(items[i] * by.inverse, by.lowest - 1, by.highest + 1) + kRounder - kRounder;
  return steps;
}

Floats cut_to_range(const Floats& steps, const Rounder& by) {
  Floats within;
  for (int64_t i = 0; i < kBlockItems; ++i) within[i] = cut(steps[i], by.lowest, by.highest);
  return within;
}

/// Scales the steps. item - item adds 0, or NaN if the item is not finite.
void scale_block(const float* items, const Floats& within, float scale, float* out) {
  for (int64_t i = 0; i < kBlockItems; ++i) out[i] = within[i] * scale + (items[i] - items[i]);
}

void compare_block(const Floats& steps, const Floats& within, bool* inside) {
  std::array<int32_t, kBlockItems> same;  // as wide as floats, so that the loop vectorises
  for (int64_t i = 0; i < kBlockItems; ++i) same[i] = steps[i] == within[i] ? 1 : 0;
  for (int64_t i = 0; i < kBlockItems; ++i) inside[i] = same[i] != 0;
}

void keep_block(const float* items, const bool* inside, float* out) {
  // A product instead of a choice: NaN * 0 is NaN, so a faulty gradient stays visible.
  for (int64_t i = 0; i < kBlockItems; ++i) out[i] = items[i] * static_cast<float>(inside[i]);
}

/// Calls block(first item) for each whole block. Returns the number of items in whole blocks.
template <typename Block>
int64_t for_whole_blocks(int64_t num_items, Block block) {
  int64_t first = 0;
  for (; first + kBlockItems <= num_items; first += kBlockItems) block(first);
  return first;
}

template <typename T>
std::array<T, kBlockItems> padded(const T* values, int64_t count) {
  std::array<T, kBlockItems> block{};
  std::copy_n(values, count, block.begin());
  return block;
}

/// Computes out = scale * (q - zero_point); NaN for non-finite items. Vector code, no branches.
/// With kMarks also inside = 1 if q was in the range before limiting, else 0.
template <bool kMarks>
void round_items(const float* items, int64_t num_items, const Rounding& rounding, float* out,
                 bool* inside = nullptr) {
  const Rounder by(rounding);
  const auto round_block = [&by](const float* block, float* rounded, [[maybe_unused]] bool* marks) {
    const Floats steps = steps_of(block, by);
    const Floats within = cut_to_range(steps, by);
    scale_block(block, within, by.scale, rounded);
    if constexpr (kMarks) compare_block(steps, within, marks);
  };
  const int64_t done = for_whole_blocks(num_items, [&](int64_t first) {
    round_block(items + first, out + first, kMarks ? inside + first : nullptr);
  });
  if (done == num_items) return;
  Floats last;
  Flags last_inside;
  round_block(padded(items + done, num_items - done).data(), last.data(), last_inside.data());
  std::copy_n(last.begin(), num_items - done, out + done);
  if constexpr (kMarks) std::copy_n(last_inside.begin(), num_items - done, inside + done);
}

/// Computes out = item * inside: 0 for limited items, NaN for non-finite ones that were limited.
void keep_inside(const float* items, const bool* inside, int64_t num_items, float* out) {
  const int64_t done = for_whole_blocks(
      num_items, [&](int64_t first) { keep_block(items + first, inside + first, out + first); });
  if (done == num_items) return;
  Floats last;
  keep_block(padded(items + done, num_items - done).data(),
             padded(inside + done, num_items - done).data(), last.data());
  std::copy_n(last.begin(), num_items - done, out + done);
}

// Two implementations with equal bits: kernels for contiguous float32 on the CPU, ATen for the
// rest. Both are wrapped in autograd functions, whose backward passes gradients straight through.

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
    round_items<true>(items + begin, end - begin, rounding, out + begin, inside + begin);
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
      round_items<false>(items + row * num_items, num_items,
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

InputScale input_scale(float min, float max) {
  // Zero must be in the range: it has to be exactly representable.
  min = std::min(min, 0.0F);
  max = std::max(max, 0.0F);
  const float scale = std::max((max - min) / static_cast<float>(kInputQuantMax), kSmallestScale);
  const float zero_point = -std::nearbyint(min / scale);
  return {scale,
          static_cast<int32_t>(std::clamp(zero_point, 0.0F, static_cast<float>(kInputQuantMax)))};
}

at::Tensor weight_scales(const at::Tensor& weight_OX, bool per_output) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = weight_OX.detach().reshape({per_output ? weight_OX.size(0) : 1, -1});
  return rows.abs().amax(1).to(at::kFloat).div_(kWeightQuantMax).clamp_min_(kSmallestScale);
}

at::Tensor quantize_weight(const at::Tensor& weight_OX, const at::Tensor& scales) {
  const at::NoGradGuard no_grad;
  // A product with the reciprocal, as in PyTorch: a quotient can round differently.
  return weight_OX.detach()
      .mul(beside(scales.reciprocal(), weight_OX))
      .round_()
      .clamp_(-kWeightQuantMax, kWeightQuantMax)
      .to(at::kChar);
}

at::Tensor round_input(const at::Tensor& input, InputScale by) {
  return RoundInput::apply(input, static_cast<double>(by.scale),
                           static_cast<int64_t>(by.zero_point));
}

at::Tensor round_weight(const at::Tensor& weight_OX, const at::Tensor& scales) {
  return RoundWeight::apply(weight_OX, scales);
}

}  // namespace lockstep::recal
