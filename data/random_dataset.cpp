#include "data/random_dataset.h"

#include <ATen/ops/empty.h>

#include "base/random.h"

namespace lockstep::data {
namespace {

enum Stream : int64_t { kInputs = 1, kTargets = 2 };

at::Tensor uniform_inputs(std::vector<int64_t> shape, int64_t num_samples, int64_t seed) {
  shape.insert(shape.begin(), num_samples);
  at::Tensor inputs_SX = at::empty(shape, at::kFloat);
  const CounterRandom random{seed, kInputs};
  float* values = inputs_SX.mutable_data_ptr<float>();
  for (int64_t i = 0; i < inputs_SX.numel(); ++i)
    values[i] = static_cast<float>(2 * random.uniform(i) - 1);
  return inputs_SX;
}

at::Tensor uniform_targets(int64_t num_classes, int64_t num_samples, int64_t seed) {
  at::Tensor targets_S = at::empty({num_samples}, at::kLong);
  const CounterRandom random{seed, kTargets};
  auto* values = targets_S.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < num_samples; ++i)
    values[i] = static_cast<int64_t>(random.below(i, num_classes));
  return targets_S;
}

}  // namespace

RandomDataset::RandomDataset(const std::vector<int64_t>& shape, int64_t num_classes,
                             int64_t num_samples, int64_t seed)
    : MemoryDataset(uniform_inputs(shape, num_samples, seed),
                    uniform_targets(num_classes, num_samples, seed), num_classes) {}

}  // namespace lockstep::data
