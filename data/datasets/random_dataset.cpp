// All numbers come from counters, so every rank generates the same data without communication.
#include "data/datasets/random_dataset.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "base/random.h"

namespace lockstep::data {
namespace {

constexpr double kMaxRandomNumbers = 1e10;

/// Records a fault if the numbers, 4 bytes each, would take too much memory.
void limit_random_numbers(const RandomOptions& options, ConfigReader* in) {
  double all = static_cast<double>(options.samples);
  for (const int64_t size : options.shape) all *= static_cast<double>(size);
  if (all <= kMaxRandomNumbers) return;
  in->fault("samples",
            fmt::format("'{}.samples' times the shape make {:.3g} numbers, at most {:.0e} are held "
                        "in memory; take fewer samples or a smaller shape",
                        in->path(), all, kMaxRandomNumbers));
}

/// Streams of random numbers, so that inputs and targets are independent.
enum Stream : int64_t { kInputs = 1, kTargets = 2, kTokens = 3 };

at::Tensor uniform_inputs(std::vector<int64_t> shape, int64_t num_samples, int64_t seed) {
  shape.insert(shape.begin(), num_samples);
  at::Tensor inputs_SX = at::empty(shape, at::kFloat);
  const CounterRandom random{seed, kInputs};
  float* values = inputs_SX.mutable_data_ptr<float>();
  for (int64_t i = 0; i < inputs_SX.numel(); ++i)
    values[i] = static_cast<float>(2 * random.uniform(i) - 1);
  return inputs_SX;
}

/// Returns uniform numbers in [0, bound).
at::Tensor uniform_counts(at::IntArrayRef shape, int64_t bound, int64_t seed, Stream stream) {
  at::Tensor counts = at::empty(shape, at::kLong);
  const CounterRandom random{seed, stream};
  auto* values = counts.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < counts.numel(); ++i)
    values[i] = static_cast<int64_t>(random.below(i, bound));
  return counts;
}

at::Tensor uniform_targets(int64_t num_classes, int64_t num_samples, int64_t seed) {
  return uniform_counts({num_samples}, num_classes, seed, kTargets);
}

MemoryDataset random_tokens(const RandomOptions& options) {
  const int64_t num_tokens = options.shape.at(0);
  // One token more than a sample has: inputs and targets are two windows of the same text.
  const at::Tensor text_ST =
      uniform_counts({options.samples, num_tokens + 1}, options.tokens, options.seed, kTokens);
  return {text_ST.narrow(1, 0, num_tokens).contiguous(),
          text_ST.narrow(1, 1, num_tokens).contiguous(), options.tokens, TargetKind::kTokens};
}

MemoryDataset random_numbers(const RandomOptions& options) {
  return {uniform_inputs(options.shape, options.samples, options.seed),
          uniform_targets(options.classes, options.samples, options.seed), options.classes};
}

}  // namespace

RandomDataset::RandomDataset(const RandomOptions& options)
    : MemoryDataset(options.tokens > 0 ? random_tokens(options) : random_numbers(options)) {}

RandomDataset::RandomDataset(const std::vector<int64_t>& shape, int64_t num_classes,
                             int64_t num_samples, int64_t seed)
    : RandomDataset(
          {.shape = shape, .classes = num_classes, .samples = num_samples, .seed = seed}) {}

DatasetType random_type() {
  return {"random", [](ConfigReader* in, DatasetUse) {
            RandomOptions options;
            in->read("shape", &options.shape, count_from(1), "random: shape of one input");
            in->read("classes", &options.classes, between(2, 1e6), "random: number of classes");
            in->read("samples", &options.samples, count_from(1), "random: number of samples");
            in->read("seed", &options.seed, at_least(0), "random: which numbers are drawn");
            in->read("tokens", &options.tokens, between(0, 1e6),
                     "random: vocabulary of random tokens [shape] in place of numbers, each target "
                     "the next token; 0: none");
            limit_random_numbers(options, in);
            if (options.tokens > 0 && options.shape.size() != 1)
              in->fault("shape",
                        fmt::format("'{}.shape' of tokens is one number, their count", in->path()));
            return [options](const DatasetInputs&) {
              return std::make_unique<RandomDataset>(options);
            };
          }};
}

}  // namespace lockstep::data
