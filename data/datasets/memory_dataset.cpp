#include "data/datasets/memory_dataset.h"

#include <ATen/ops/tensor.h>

#include "base/digest.h"

namespace lockstep::data {

MemoryDataset::MemoryDataset(at::Tensor inputs_SX, at::Tensor targets_SY, int64_t num_classes,
                             TargetKind target_kind)
    : inputs_SX_(std::move(inputs_SX)),
      targets_SY_(std::move(targets_SY)),
      target_kind_(target_kind),
      num_classes_(num_classes) {}

SampleSpec MemoryDataset::spec() const {
  return {.input_shape = inputs_SX_.sizes().slice(1).vec(),
          .input_dtype = inputs_SX_.scalar_type(),
          .target_kind = target_kind_,
          .num_classes = num_classes_};
}

Samples MemoryDataset::get(std::span<const int64_t> indices_B, int64_t /*epoch*/) const {
  const at::Tensor rows_B =
      at::tensor(at::ArrayRef<int64_t>(indices_B.data(), indices_B.size()), at::kLong);
  return {inputs_SX_.index_select(0, rows_B), targets_SY_.index_select(0, rows_B)};
}

std::string MemoryDataset::digest() const {
  return Sha256().add(inputs_SX_).add(targets_SY_).hex();
}

}  // namespace lockstep::data
