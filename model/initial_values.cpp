#include "model/initial_values.h"

#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "base/digest.h"
#include "base/random.h"

namespace lockstep::model {
namespace {

constexpr uint64_t kWordsOfANormal = 3;

/// Approximately normal: the sum of twelve 16-bit uniform numbers minus its mean. Variance 1,
/// limits ±6. Exact on every machine, unlike logarithms and cosines, which differ between C
/// libraries.
double normal_number(const CounterRandom& random, uint64_t index) {
  int64_t sum = 0;
  for (uint64_t word = 0; word < kWordsOfANormal; ++word) {
    const uint64_t bits = random.bits(index * kWordsOfANormal + word);
    for (int shift = 0; shift < 64; shift += 16)
      sum += static_cast<int64_t>((bits >> shift) & 0xffffU);
  }
  // Twelve uniform numbers of variance 1/12 each add up to variance 1.
  return static_cast<double>(sum - 6 * 0xffff) * 0x1.0p-16;
}

int64_t fan_out_of(at::IntArrayRef weight_shape) {
  return fan_in_of(weight_shape) / weight_shape[1] * weight_shape[0];
}

/// Replaces the kinds that depend on the shape by plain ones.
Initial for_shape(Initial values, at::IntArrayRef shape) {
  const auto root = [](double number) { return std::sqrt(number); };
  switch (values.kind) {
    case Initial::Kind::kFanIn:
      return uniform(1 / root(static_cast<double>(fan_in_of(shape))));
    case Initial::Kind::kFanOut:
      return normal(root(2.0 / static_cast<double>(fan_out_of(shape))));
    case Initial::Kind::kXavier:
      // A uniform variable in ±b has variance b²/3.
      return uniform(root(6.0 / static_cast<double>(fan_in_of(shape) + fan_out_of(shape))));
    default:
      return values;
  }
}

}  // namespace

int64_t fan_in_of(at::IntArrayRef weight_shape) {
  int64_t fan_in = 1;
  for (const int64_t extent : weight_shape.slice(1)) fan_in *= extent;
  return fan_in;
}

at::Tensor initial_parameter(const std::string& name, at::IntArrayRef shape, Initial values,
                             int64_t seed) {
  const Initial by = for_shape(values, shape);
  if (by.kind == Initial::Kind::kConstant)
    return at::full(shape, by.scale, at::kFloat).set_requires_grad(true);
  at::Tensor tensor = at::empty(shape, at::kFloat);
  // By name, not by order: a layer keeps its values when others are added.
  const CounterRandom random{seed, fnv1a64(name)};
  auto* data = tensor.mutable_data_ptr<float>();
  const bool is_normal = by.kind == Initial::Kind::kNormal;
  for (int64_t i = 0; i < tensor.numel(); ++i)
    data[i] = static_cast<float>(
        by.scale * (is_normal ? normal_number(random, i) : 2 * random.uniform(i) - 1));
  return tensor.set_requires_grad(true);
}

}  // namespace lockstep::model
