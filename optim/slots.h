#pragma once

#include <string_view>
#include <vector>

#include "base/params.h"
#include "base/state_list.h"

namespace lockstep::optim {

/// A zero tensor beside each buffer's values, of the same size.
std::vector<at::Tensor> zeros_beside(const std::vector<FlatBuffer>& buffers);

/// Adds `optimizer/<parameter>/<slot>` for every parameter: views into the slot's flat tensors.
void list_slot(std::string_view slot, const std::vector<at::Tensor>& flat_slots,
               const std::vector<FlatBuffer>& buffers, const ParamTable& params, StateList* list);

}  // namespace lockstep::optim
