#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/param_group.h"

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
  std::string name;       ///< dotted, unique: blocks.0.conv.weight
  at::Tensor tensor;      ///< leaf that requires a gradient
  bool prunable = false;  ///< weight of 2 or more dimensions of a linear or convolution layer
  bool decayed = false;   ///< weight decay applies: to weights, not to biases or normalisation
  /// Null: backward always adds to the gradient.
  std::shared_ptr<GradInPlace> grad_in_place = nullptr;
  /// Passes to the layer the elements that a mask keeps (base/bits/bit_mask.h; null: all), between
  /// steps. The layer may then compute with these only, and give only these a gradient. The others
  /// must be 0. Empty: it computes with all.
  std::function<void(const uint8_t* bits)> follow_mask = nullptr;
};

/// Parameters of a model in the model's order, the same on every rank.
using ParamTable = std::vector<Param>;

/// Returns the parameter group of base/tensors/param_group.h.
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
/// tensors and their gradients are views of them. One dtype, one parameter group, all trainable or
/// all frozen.
///
/// Symbol: [E] = elements of the buffer.
struct FlatBuffer {
  at::Tensor values_E;
  at::Tensor grads_E;  ///< undefined if frozen
  int group = kWeightGroup;
  bool frozen = false;            ///< excluded from reduction and update
  std::vector<FlatSlice> slices;  ///< ascending offsets, no gaps
  /// Gradients by rank if ranks share memory (base/tensors/flat_memory.h), else empty. values_E is
  /// then the only copy of all ranks, grads_E is this rank's entry, and the others may be read.
  std::vector<at::Tensor> grads_by_rank;
};

}  // namespace lockstep
