#include "optim/slots.h"

#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include "base/params.h"
#include "optim/param_arena.h"

namespace lockstep::optim {

std::vector<at::Tensor> zeros_beside(const std::vector<FlatBuffer>& buffers) {
  std::vector<at::Tensor> flat_slots;
  for (const FlatBuffer& buffer : buffers) flat_slots.push_back(at::zeros_like(buffer.values_E));
  return flat_slots;
}

void list_slot(std::string_view slot, const std::vector<at::Tensor>& flat_slots,
               const std::vector<FlatBuffer>& buffers, const ParamTable& params, StateList* list) {
  for (size_t b = 0; b < buffers.size(); ++b) {
    for (const FlatSlice& slice : buffers[b].slices) {
      const std::string& name = params[static_cast<size_t>(slice.param)].name;
      list->push_back({fmt::format("optimizer/{}/{}", slashed(name), slot),
                       view_of_slice(flat_slots[b], slice, params), nullptr});
    }
  }
}

}  // namespace lockstep::optim
