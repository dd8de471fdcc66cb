#pragma once

#include <string>
#include <vector>

namespace lockstep::checkpoint {

/// Returns the serialized object graph of these state keys, by which tf.train.Checkpoint finds its
/// variables. The parts of a key name nested objects; the last part names a variable. Keys outside
/// the graph (is_beside_graph()) are skipped, and save_counter is added. The result does not depend
/// on the order of the keys. Throws Error(kBug) for an empty part of a key or a repeated key.
std::string object_graph(const std::vector<std::string>& keys);

}  // namespace lockstep::checkpoint
