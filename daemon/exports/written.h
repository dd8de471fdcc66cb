#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::daemon {

struct TensorForm {
  std::string name;
  std::string dtype;  ///< float32, int8, ... as `lockstep ckpt show` names them
  std::vector<int64_t> shape;
};

TensorForm form_of(const std::string& name, const at::Tensor& tensor);

/// What an export wrote.
struct Written {
  std::string file;  ///< or the prefix of several files
  int64_t num_bytes = 0;
  std::string text;                 ///< for people: lines, the last with its line break
  std::vector<TensorForm> tensors;  ///< in the file, by the names that they have there
};

}  // namespace lockstep::daemon
