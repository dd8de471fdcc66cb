#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/tensors/params.h"

namespace lockstep::optim {

/// Assignment of parameters (indices in the table) to buffers, in memory order.
using BufferPlan = std::vector<std::vector<int64_t>>;

/// Stores a model's parameters and their gradients in flat buffers. The model's tensors become
/// views of them. So a buffer needs one collective and one fused update, without copies.
class FlatParams {
 public:
  /// Starts with all parameters trainable. The buffers, and so the model, live on `device`. Plan:
  /// see flatten().
  FlatParams(ParamTable& params, const BufferPlan& plan, at::Device device);

  /// Creates a new layout. Each parameter is in exactly one buffer of the plan. All parameters of a
  /// buffer share dtype, group and trainability. Values are kept, gradients become zeros. Frozen
  /// parameters no longer require a gradient and have none. Tensors that were views of the buffers
  /// (detached parameters) no longer are; get them again. Returns the old buffers, for owners of
  /// tensors with the same layout (Optimizer::rebuild).
  std::vector<FlatBuffer> flatten(const BufferPlan& plan, const std::vector<bool>& trainable);

  /// Moves everything into memory that ranks share, for the rest of the run. The values must be
  /// equal on all ranks. Tensors that were views no longer are. Collective; so is flatten() from
  /// then on.
  void move_to(std::unique_ptr<FlatMemory> memory);

  std::vector<FlatBuffer>& buffers() { return buffers_; }
  at::Device device() const { return buffers_.at(0).values_E.device(); }
  size_t num_buffers() const { return buffers_.size(); }
  const ParamTable& params() const { return params_; }
  int64_t num_trainable_elements() const;

  /// Zeroes the gradients. Call it before each update's first backward. Gradients that their layer
  /// can overwrite are only marked (GradInPlace::is_stale), which saves a pass over them.
  void zero_grads();
  /// Zeroes gradients that are still marked because no layer wrote them. Call it after the last
  /// backward, before the gradients are used.
  void zero_unwritten_grads();

  /// Throws Error(kConfig) with the name of the first parameter whose values or gradient are not in
  /// its buffer. In that case the network's own code has replaced them, and no update would reach
  /// it.
  void require_views() const;

 private:
  /// Allocates the buffers, copies the parameters' values, and makes the parameters views.
  void fill(std::vector<FlatBuffer>& buffers, at::Device device);
  void fill_shared(std::vector<FlatBuffer>& buffers, std::vector<at::Tensor> values_by_param);

  ParamTable& params_;
  std::unique_ptr<FlatMemory> memory_;  ///< null: this rank's own memory
  std::vector<FlatBuffer> buffers_;
};

/// Returns the part of a flat tensor [E] that belongs to one slice, in the parameter's shape.
/// Shares memory.
at::Tensor view_of_slice(const at::Tensor& flat_E, const FlatSlice& slice,
                         const ParamTable& params);

}  // namespace lockstep::optim
