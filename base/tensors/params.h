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

/// What a layer whose backward writes the gradient of its weight in place shares with who trains
/// it.
struct GradInPlace {
  /// What stands in the gradient does not count: the layer overwrites it instead of adding to it,
  /// and makes this false.
  bool is_stale = false;
  /// Where not empty: a layer that makes the gradient in parts calls it in backward after each,
  /// with how many elements from the front, in the order of memory, it has written and will not
  /// write again in this pass. Not all layers and products do.
  std::function<void(int64_t num_elements)> on_written = nullptr;
};

/// One trainable tensor of a model. `tensor` shares memory with the model: writing into it changes
/// the model.
struct Param {
  std::string name;       ///< dotted, unique: blocks.0.conv.weight
  at::Tensor tensor;      ///< leaf that requires a gradient
  bool prunable = false;  ///< weight of 2 or more dimensions of a linear or convolution layer
  bool decayed = false;   ///< weight decay applies: weights, not biases or normalisation
  /// Null: backward only adds to the gradient.
  std::shared_ptr<GradInPlace> grad_in_place = nullptr;
  /// Tells the layer which elements a mask keeps (base/bits/bit_mask.h; null: all), between steps:
  /// it may compute with these alone, and give them alone a gradient. The others must be 0. Empty:
  /// it computes with all.
  std::function<void(const uint8_t* bits)> follow_mask = nullptr;
};

/// Says of a parameter that it is none of the table.
constexpr std::string_view kFrozenInConstructor =
    "frozen in the network's constructor (requires_grad=False)";

/// A model's parameters in the model's own order, the same on every rank.
using ParamTable = std::vector<Param>;

/// The parameter group of base/tensors/param_group.h.
inline int group_of(const Param& param) { return param.decayed ? kWeightGroup : kOtherGroup; }

/// blocks.0.conv.weight -> blocks/0/conv/weight, the form in which names stand in a save.
std::string slashed(std::string dotted_name);

/// Where one parameter lies inside a flat buffer.
struct FlatSlice {
  int64_t param = 0;     ///< index in the ParamTable
  int64_t offset_E = 0;  ///< first element
  int64_t num_elements = 0;
};

/// Values and gradients of some parameters in two contiguous tensors, of which the model's tensors
/// and their gradients are views. One dtype, one parameter group, all trainable or all frozen.
///
/// Symbol: [E] = elements of the buffer.
struct FlatBuffer {
  at::Tensor values_E;
  at::Tensor grads_E;  ///< undefined where frozen
  int group = kWeightGroup;
  bool frozen = false;            ///< takes no part in reduction and update
  std::vector<FlatSlice> slices;  ///< ascending offsets, no gaps
  /// By rank, where ranks share memory (base/tensors/flat_memory.h): values_E is then the one copy
  /// of all ranks, grads_E this rank's of these, and the others' may be read. Else empty.
  std::vector<at::Tensor> grads_by_rank;
};

}  // namespace lockstep
