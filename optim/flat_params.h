#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "base/tensors/state_list.h"

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
  void fill_shared(std::vector<FlatBuffer>& buffers, bool is_reused);

  ParamTable& params_;
  std::unique_ptr<FlatMemory> memory_;  ///< null: this rank's own memory
  std::vector<FlatBuffer> buffers_;
};

/// Returns the part of a flat tensor [E] that belongs to one slice, in the parameter's shape.
/// Shares memory.
at::Tensor view_of_slice(const at::Tensor& flat_E, const FlatSlice& slice,
                         const ParamTable& params);

/// Exponential moving average (EMA) of a model's weights:
///
///   ema += (1 - d) (w - ema),   d = min(decay, (1 + n) / (10 + n))
///
/// after the n-th update, so that the first updates have more weight. Source: TensorFlow's
/// tf.train.ExponentialMovingAverage(decay, num_updates), with num_updates = n.
///
/// Averages all parameters, including frozen ones, each as one dense tensor on each rank, whatever
/// the layout. On CPUs no bit of a float32 average depends on the number of threads. One caller at
/// a time.
class Ema {
 public:
  /// The table must outlive this. Without decay the EMA is off: no call has an effect or uses
  /// memory.
  Ema(std::optional<double> decay, ParamTable& params);

  bool is_on() const { return decay_.has_value(); }

  /// Copies the weights to the average, unless it already contains updates (from a restore). Call
  /// it before the first update. True if it copied.
  bool begin();
  /// Adds an update. Call it after each update of the weights.
  void update();

  /// Average of one parameter, in its shape: live memory. Undefined if off.
  at::Tensor of(int64_t param) const;
  /// Returns the model's parameter table with the averages as tensors: live memory. Empty if off.
  ParamTable params() const;
  /// Checkpoint state: `ema/<name>` of each parameter, and the number of updates,
  /// `_lockstep/ema/num_updates`. A checkpoint without them leaves 0 updates, so begin() copies the
  /// weights. Empty if off.
  StateList state();

  /// Returns d of the n-th update.
  static double decay_at(double decay, int64_t n);

 private:
  friend class EmaInModel;

  const std::optional<double> decay_;
  ParamTable& params_;
  std::vector<at::Tensor> averages_;  // by parameter; empty if off
  int64_t num_updates_ = 0;
};

/// Replaces the model's weights by the averages for its lifetime, for evaluation and export. No
/// memory is copied or changed, so a save in progress is not disturbed. Meanwhile do not update the
/// weights or list the state for a save.
class EmaInModel {
 public:
  /// Null, or an average that is off: the weights stay.
  explicit EmaInModel(Ema* ema);
  ~EmaInModel();
  EmaInModel(const EmaInModel&) = delete;
  EmaInModel& operator=(const EmaInModel&) = delete;

 private:
  Ema* ema_;
  std::vector<at::Tensor> weights_;  // by parameter: the original memory
};

}  // namespace lockstep::optim
