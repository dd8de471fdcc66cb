#pragma once

#include <string>
#include <vector>

#include "coord/data_map.h"

namespace lockstep::coord {

/// Splits a batch [B, ...] into its B samples. Nested maps are flattened, each value is split along
/// dimension 0, and the nesting is restored. A sample's tensor has the shape [...], is on the CPU
/// and contiguous. It shares the batch's memory if that is on the CPU and contiguous too. Texts [B]
/// give one text each. Keys of `not_batch_keys` (of the outermost map) are passed unsplit to each
/// sample. A map without other keys has no samples.
///
/// Throws Error(kBadData) if batch sizes differ (with both keys and sizes) or a tensor has no
/// dimension 0.
std::vector<DataMap> split_batch_inputs(const DataMap& batch,
                                        const std::vector<std::string>& not_batch_keys);

/// Value in nested maps with its path: "outputs/boxes".
struct FlatValue {
  std::vector<std::string> path;
  const DataValue* value;  ///< never a map; valid as long as the map
};
std::vector<FlatValue> flat_values(const DataMap& map);
std::string path_text(const FlatValue& value);

/// Returns the tensor on the CPU and contiguous, so that its numbers can be read in row-major
/// order.
at::Tensor on_cpu(const at::Tensor& tensor);

}  // namespace lockstep::coord
