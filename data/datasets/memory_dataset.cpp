#include "data/datasets/memory_dataset.h"

#include <ATen/ops/tensor.h>

#include "base/digest.h"

namespace lockstep::data {

MemoryDataset::MemoryDataset(at::Tensor inputs_SX, at::Tensor targets_S, int64_t num_classes)
    : inputs_SX_(std::move(inputs_SX)),
      targets_S_(std::move(targets_S)),
      num_classes_(num_classes) {}

Samples MemoryDataset::get(std::span<const int64_t> indices_B) const {
  const at::Tensor rows_B =
      at::tensor(at::ArrayRef<int64_t>(indices_B.data(), indices_B.size()), at::kLong);
  return {inputs_SX_.index_select(0, rows_B), targets_S_.index_select(0, rows_B)};
}

std::string MemoryDataset::digest() const { return Sha256().add(inputs_SX_).add(targets_S_).hex(); }

}  // namespace lockstep::data
