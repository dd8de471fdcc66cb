#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

namespace lockstep::checkpoint {

/// Tensor of a state dict. Its values are in a storage, which is a separate file in the archive.
struct TensorInStorage {
  std::string storage;  ///< its key: the file data/<key>
  at::ScalarType type = at::kFloat;
  int64_t storage_elements = 0;
  int64_t offset = 0;            ///< in elements; the entire tensor is inside the storage
  std::vector<int64_t> shape;    ///< at most as many elements as the storage
  std::vector<int64_t> strides;  ///< in elements, never negative
  std::string unread = {};       ///< the kind of an unsupported tensor; then nothing else is set
};

/// Returns the tensors of a pickled state dict (data.pkl) by name. Names inside nested dicts are
/// joined with dots: {"model": {"fc.weight": T}} gives model.fc.weight. Other content is skipped.
///
/// No code of the pickle is run. It may only name constructors of tensors, parameters and plain
/// values, such as torch.Size, types and sets. Tensors of unsupported kinds (quantized, float8) are
/// listed as unread.
///
/// Throws std::runtime_error with the reason. Reasons include two tensors of one name and names of
/// more than 1000 bytes (16 MiB in all). Tensors whose neg or conj bit is set are refused too. The
/// values of those are not the stored ones.
///
/// Source: torch/_utils.py (_rebuild_tensor_v2, _rebuild_parameter), torch/serialization.py
/// (persistent ids).
std::map<std::string, TensorInStorage> tensors_of_pickle(std::string_view bytes);

}  // namespace lockstep::checkpoint
