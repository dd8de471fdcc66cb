#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

namespace lockstep::checkpoint {

/// Where a tensor of a state dict lies: in a storage, which is a file of its own in the archive.
struct TensorInStorage {
  std::string storage;  ///< its key: the file data/<key>
  at::ScalarType type = at::kFloat;
  int64_t storage_elements = 0;
  int64_t offset = 0;            ///< in elements; the whole tensor lies inside the storage
  std::vector<int64_t> shape;    ///< as many elements as the storage has, at most
  std::vector<int64_t> strides;  ///< in elements, none below 0
  std::string unread = {};  ///< what it is made of, where that is not read; else nothing is set
};

/// The tensors of a pickled state dict (data.pkl) by name, those of dicts inside it with a dot
/// between: {"model": {"fc.weight": T}} gives model.fc.weight. What else it holds is passed over.
/// Nothing of the pickle is run: it may name what makes tensors, parameters and plain values, such
/// as torch.Size, types and sets. Tensors of kinds that are not read (quantized ones, float8) are
/// there as such. Throws std::runtime_error with the reason, also for two tensors
/// of one name, names of more than 1000 bytes (16 MiB in all), and tensors whose values are not
/// those that are stored (the neg or conj bit).
///
/// Source: torch/_utils.py (_rebuild_tensor_v2, _rebuild_parameter), torch/serialization.py
/// (persistent ids).
std::map<std::string, TensorInStorage> tensors_of_pickle(std::string_view bytes);

}  // namespace lockstep::checkpoint
