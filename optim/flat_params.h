#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/tensors/flat_memory.h"
#include "base/tensors/params.h"

namespace lockstep::optim {

/// Which parameters (indices in the table) stand in which buffer, in memory order.
using BufferPlan = std::vector<std::vector<int64_t>>;

/// Lays a model's parameters and their gradients into flat buffers, of which the model's tensors
/// become views: one collective and one fused update a buffer, with no copy between.
class FlatParams {
 public:
  /// All parameters trainable. The buffers, and so the model, live on `device`. The plan is as for
  /// flatten().
  FlatParams(ParamTable& params, const BufferPlan& plan, at::Device device);

  /// Lays everything out anew. Each parameter stands in exactly one buffer of the plan; all of a
  /// buffer share dtype, group and trainability. Values are kept, gradients become zeros. Frozen
  /// parameters stop to require a gradient and have none. Tensors that were views of the buffers
  /// before (detached parameters) no longer are: take them anew. Returns the buffers before, for
  /// who keeps tensors beside them (Optimizer::follow).
  std::vector<FlatBuffer> flatten(const BufferPlan& plan, const std::vector<bool>& trainable);

  /// Moves everything into memory that ranks share, where it stays. The values must be equal on all
  /// ranks. Tensors that were views before no longer are. Collective, as flatten() from then on.
  void move_to(std::unique_ptr<FlatMemory> memory);

  std::vector<FlatBuffer>& buffers() { return buffers_; }
  at::Device device() const { return buffers_.at(0).values_E.device(); }
  size_t num_buffers() const { return buffers_.size(); }
  const ParamTable& params() const { return params_; }
  int64_t num_trainable_elements() const;

  /// Call before each update's first backward, which adds to the gradients. Those that their layer
  /// can overwrite are only marked (GradInPlace::is_stale): this saves a pass over them.
  void zero_grads();
  /// Call after the last backward, before the gradients are used: what is still marked, because no
  /// layer came to it, becomes zeros.
  void zero_unwritten_grads();

  /// Throws Error(kConfig) with the name of the first parameter whose values or gradient stand
  /// elsewhere than in its buffer: code of the network's own has replaced them, and no update would
  /// reach it.
  void require_views() const;

 private:
  /// Memory for the buffers, whose values are taken from the parameters, and views of it.
  void fill(std::vector<FlatBuffer>& buffers, at::Device device);
  void fill_shared(std::vector<FlatBuffer>& buffers, std::vector<at::Tensor> values_by_param);

  ParamTable& params_;
  std::unique_ptr<FlatMemory> memory_;  ///< null: of this rank's own
  std::vector<FlatBuffer> buffers_;
};

/// Part of a flat tensor [E] that belongs to one slice, in the parameter's own shape. Shares
/// memory.
at::Tensor view_of_slice(const at::Tensor& flat_E, const FlatSlice& slice,
                         const ParamTable& params);

}  // namespace lockstep::optim
