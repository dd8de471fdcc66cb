// Separate from digest.cpp, so that code that reads only texts links without LibTorch.
#include <ATen/core/Tensor.h>

#include "base/digest.h"
#include "base/error.h"

namespace lockstep {

Sha256& Sha256::add(const at::Tensor& tensor) {
  check(tensor.is_cpu(), "a digest needs a CPU tensor");
  const at::Tensor whole = tensor.detach().contiguous();
  return add({static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()});
}

}  // namespace lockstep
