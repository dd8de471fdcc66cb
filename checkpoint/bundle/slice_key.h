#pragma once

#include <string>
#include <string_view>

#include "checkpoint/bundle/tensor_box.h"

namespace lockstep::checkpoint {

/// The key of the index entry that gives the place of one slice of a tensor; sorts before all names
/// (its first byte is 0). `box` in the form that with_whole_dims() gives, as TensorFlow writes it.
/// docs/checkpoint_format.md, Slices, gives the bytes.
///
/// Source: keys are TensorFlow's "ordered code" of number 0, name, number of dimensions, and first
/// index and length of each.
std::string slice_key(std::string_view name, const TensorBox& box);

inline bool is_slice_key(std::string_view key) { return !key.empty() && key.front() == '\0'; }

/// The box with -1 as length where it covers a whole dimension: the form of keys and protos.
TensorBox with_whole_dims(TensorBox box, const std::vector<int64_t>& shape);

}  // namespace lockstep::checkpoint
