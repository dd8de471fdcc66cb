#pragma once

#include <string>
#include <vector>

#include "coord/data_map.h"

namespace lockstep::coord {

/// The samples of a batch [B, ...], B of them: nested maps are flattened, each value is split along
/// dimension 0, and the nesting is restored. A sample's tensor has the shape [...], is on the CPU,
/// contiguous, and shares memory with the batch's where that was so too; texts [B] give one text
/// each. Keys of `not_batch_keys` (of the outermost map) go whole to each sample; of maps all of
/// whose keys are such, or of none, there are no samples.
///
/// Throws Error(kBadData) where batch sizes differ (both keys, both sizes) or a tensor has no
/// dimension 0.
std::vector<DataMap> split_batch_inputs(const DataMap& batch,
                                        const std::vector<std::string>& not_batch_keys);

/// The values of nested maps, by path: "outputs/boxes".
struct FlatValue {
  std::vector<std::string> path;
  const DataValue* value;  ///< no map; lives as long as the map
};
std::vector<FlatValue> flat_values(const DataMap& map);
std::string path_text(const FlatValue& value);

/// `tensor` where its numbers can be read, in row-major order.
at::Tensor on_cpu(const at::Tensor& tensor);

}  // namespace lockstep::coord
