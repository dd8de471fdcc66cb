#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/param_info.h"

/// Parameters of a model: table, flat buffers, shared memory, hooks on layers and new tensors.
namespace lockstep {

/// State shared between the trainer and a layer that writes its weight gradient in place.
struct GradInPlace {
  /// True if the gradient's content is outdated. The layer then overwrites it instead of adding to
  /// it, and sets this to false.
  bool is_stale = false;
  /// Callback for a layer that writes the gradient in parts; may be empty. In backward the layer
  /// calls it after each part. The argument is a number of leading elements, in memory order. The
  /// layer will not write these again in this pass. Not all layers and products do.
  std::function<void(int64_t num_elements)> on_written = nullptr;
};

/// Trainable tensor of a model. `tensor` shares memory with the model: writing into it changes the
/// model.
struct Param {
  std::string name;            ///< dotted, unique: blocks.0.conv.weight
  at::Tensor tensor;           ///< leaf that requires a gradient
  bool prunable = false;       ///< weight of 2 or more dimensions of a linear or convolution layer
  bool decayed = false;        ///< weight decay applies: to weights, not to biases or normalisation
  bool is_matrix = false;      ///< updated as a matrix (optimizer.type muon), never by parts
  double rate_multiplier = 1;  ///< of the learning rate
  /// Largest number of elements of a block of the optimizer's state. Shorter rows are joined to as
  /// many, and ranks do not divide these.
  int64_t block_E = 1;
  /// Null: backward always adds to the gradient.
  std::shared_ptr<GradInPlace> grad_in_place = nullptr;
  /// Passes to the layer the elements that a mask keeps (base/simd/bit_mask.h; null: all), between
  /// steps. The layer may then compute with these only, and give only these a gradient. The others
  /// must be 0. Empty: it computes with all.
  std::function<void(const uint8_t* bits)> follow_mask = nullptr;
};

/// Parameters of a model in the model's order, the same on every rank.
using ParamTable = std::vector<Param>;

/// Returns the parameter group of base/tensors/param_info.h.
inline int group_of(const Param& param) { return param.decayed ? kWeightGroup : kOtherGroup; }

/// Converts blocks.0.conv.weight to blocks/0/conv/weight, the form of names in a checkpoint.
std::string slashed(std::string dotted_name);

/// Slice of a flat buffer that belongs to one parameter.
struct FlatSlice {
  int64_t param = 0;     ///< index in the ParamTable
  int64_t offset_E = 0;  ///< first element
  int64_t num_elements = 0;
};

/// Flat buffer: values and gradients of some parameters in two contiguous tensors. The model's
/// tensors and their gradients are views of them. One dtype, one parameter group, one multiplier of
/// the rate, all trainable or all frozen, and one matrix or none.
///
/// Symbol: [E] = elements of the buffer.
struct FlatBuffer {
  at::Tensor values_E;
  at::Tensor grads_E;  ///< undefined if frozen
  int group = kWeightGroup;
  double rate_multiplier = 1;
  bool frozen = false;            ///< excluded from reduction and update
  bool is_matrix = false;         ///< one Param::is_matrix, which no two ranks share
  std::vector<FlatSlice> slices;  ///< ascending offsets, no gaps
  /// Gradients by rank if ranks share memory (FlatMemory), else empty. values_E is then the only
  /// copy of all ranks, grads_E is this rank's entry, and the others may be read.
  std::vector<at::Tensor> grads_by_rank;
};

/// Memory that the ranks of a host share for flat buffers. There is one copy of the values for all,
/// and gradients of each rank, which the others may read. All ranks make the same calls in the same
/// order.
///
/// Order of a layout: begin(); give() for each buffer; then meet().
class FlatMemory {
 public:
  virtual ~FlatMemory() = default;

  /// Starts a layout. After all ranks have called it, earlier given memory may be given again,
  /// since its values have been copied. Collective.
  virtual void begin() = 0;
  /// Gives the buffer memory for values of this number and type. Unless it is frozen, gives memory
  /// for gradients of all ranks too. The content is undefined. Throws Error(kBug) beyond the size
  /// at construction.
  virtual void give(FlatBuffer* buffer, int64_t num_elements, at::ScalarType dtype) = 0;
  /// True if this rank writes the values of a new layout; the others have them after meet().
  virtual bool is_writer() const = 0;
  /// Returns once every rank has called it: earlier writes are visible then. Collective.
  virtual void meet() = 0;
};

/// Hook by which another module changes the tensors that a layer computes with, such as fake
/// quantization. It is called in each forward pass, input before weight, layers in the order of the
/// model. `layer` is an index in the model's list of LayerInfo. The result takes part in the
/// gradient.
class LayerHook {
 public:
  virtual ~LayerHook() = default;
  virtual at::Tensor input(int64_t layer, const at::Tensor& input) = 0;
  virtual at::Tensor weight(int64_t layer, const at::Tensor& weight) = 0;
};

/// Watcher that is called with each new tensor, after its initial value is written and before
/// anything computes with it. It may write another value. What it throws reaches the caller that
/// caused the creation.
using TensorWatcher = std::function<void(const std::string& name, const at::Tensor& tensor)>;

/// Part of an object that creates tensors later than itself. Examples: a layer takes its shape from
/// its first input, an optimizer creates its slots at its first step. Code that waits for such
/// tensors watches it, as a delayed restore does (checkpoint/checkpoint.h). One thread at a
/// time.
class DeferredVariables {
 public:
  DeferredVariables() = default;
  virtual ~DeferredVariables() = default;
  DeferredVariables(const DeferredVariables&) = delete;  // watchers of one do not watch its copies
  DeferredVariables& operator=(const DeferredVariables&) = delete;

  /// Adds a watcher, which is called as long as the handle lives. The handle may outlive this
  /// object.
  [[nodiscard]] std::shared_ptr<void> watch(TensorWatcher watcher);

  /// Returns the known names of tensors still to come, relative to this object.
  virtual std::vector<std::string> names_to_come() const = 0;

 protected:
  /// Calls the watchers. Call it for each new tensor with its name relative to this object.
  void announce(const std::string& name, const at::Tensor& tensor);

 private:
  std::vector<std::weak_ptr<TensorWatcher>> watchers_;
};

}  // namespace lockstep
