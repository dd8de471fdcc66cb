#pragma once

#include <cstdint>
#include <vector>

#include "base/params.h"

namespace lockstep::optim {

/// Lays a model's parameters and their gradients into flat buffers, of which the model's tensors
/// become views: one collective and one fused update a buffer, with no copy between.
class ParamArena {
 public:
  /// plan[b] lists the parameters (indices in the table) of buffer b in memory order; each
  /// parameter stands in exactly one buffer; all of a buffer share dtype, device and `decayed`.
  /// Values are kept, gradients become zeros. Afterwards the parameters' tensors must not be given
  /// other memory (set_data). The buffers, and so the model, live on `device`.
  ParamArena(ParamTable& params, const std::vector<std::vector<int64_t>>& plan, at::Device device);

  std::vector<FlatBuffer>& buffers() { return buffers_; }
  at::Device device() const { return buffers_.at(0).values_E.device(); }
  size_t num_buffers() const { return buffers_.size(); }
  const ParamTable& params() const { return params_; }

  /// Backward adds to the gradients; call before each update's first backward.
  void zero_grads();

 private:
  ParamTable& params_;
  std::vector<FlatBuffer> buffers_;
};

/// Part of a flat tensor [E] that belongs to one slice, in the parameter's own shape. Shares
/// memory.
at::Tensor view_of_slice(const at::Tensor& flat_E, const FlatSlice& slice,
                         const ParamTable& params);

}  // namespace lockstep::optim
