#include "data/datasets/random_dataset.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "base/random.h"

namespace lockstep::data {
namespace {

constexpr double kMaxRandomNumbers = 1e10;

/// All of them lie in memory, 4 bytes each.
void limit_random_numbers(const RandomOptions& options, ConfigReader* in) {
  double all = static_cast<double>(options.samples);
  for (const int64_t size : options.shape) all *= static_cast<double>(size);
  if (all <= kMaxRandomNumbers) return;
  in->fault("samples",
            fmt::format("'{}.samples' times the shape make {:.3g} numbers, at most {:.0e} are held "
                        "in memory; take fewer samples or a smaller shape",
                        in->path(), all, kMaxRandomNumbers));
}

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

DatasetType random_type() {
  return {"random", [](ConfigReader* in, DatasetUse) {
            RandomOptions options;
            in->read("shape", &options.shape, count_from(1), "random: shape of one input");
            in->read("classes", &options.classes, between(2, 1e6), "random: number of classes");
            in->read("samples", &options.samples, count_from(1), "random: number of samples");
            in->read("seed", &options.seed, at_least(0), "random: which numbers are drawn");
            limit_random_numbers(options, in);
            return [options](const DatasetInputs&) {
              return std::make_unique<RandomDataset>(options.shape, options.classes,
                                                     options.samples, options.seed);
            };
          }};
}

}  // namespace lockstep::data
