#pragma once

#include <string>
#include <vector>

namespace lockstep::checkpoint {

/// The serialized object graph of these state keys, by which tf.train.Checkpoint matches its
/// variables: the parts of a key name nested objects, the last part a variable. Keys beside the
/// graph are passed over; save_counter is added. Equal for equal keys in any order. Throws
/// Error(kBug) for an empty part of a key or a key that stands twice.
std::string object_graph(const std::vector<std::string>& keys);

}  // namespace lockstep::checkpoint
