#include "daemon/exports/written.h"

#include "checkpoint/bundle/tensor_type.h"

namespace lockstep::daemon {

TensorForm form_of(const std::string& name, const at::Tensor& tensor) {
  const auto number = checkpoint::type_number(tensor.scalar_type());
  return {name, checkpoint::type_name(number.value_or(0)), tensor.sizes().vec()};
}

}  // namespace lockstep::daemon
