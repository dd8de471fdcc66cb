#pragma once

#include <string>
#include <string_view>

#include "checkpoint/bundle/tensor_box.h"

namespace lockstep::checkpoint {

/// Returns the key of the index entry with the place of one slice of a tensor. Its first byte is 0,
/// so it sorts before all names. `box` must have the form of with_whole_dims(), as TensorFlow
/// writes it. docs/checkpoint_format.md, Slices, defines the bytes.
///
/// Source: TensorFlow's "ordered code" of number 0, name, number of dimensions, and first index and
/// length of each.
std::string slice_key(std::string_view name, const TensorBox& box);

inline bool is_slice_key(std::string_view key) { return !key.empty() && key.front() == '\0'; }

/// Returns the box with length -1 for each dimension that it covers entirely: the form of keys and
/// protos.
TensorBox with_whole_dims(TensorBox box, const std::vector<int64_t>& shape);

}  // namespace lockstep::checkpoint
