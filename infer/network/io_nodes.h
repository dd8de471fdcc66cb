#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "coord/data_map.h"

namespace lockstep::infer {

/// Input or output of a network: an entry of a run's io_nodes.json (docs/export.md).
struct IoNode {
  static constexpr int64_t kAny = -1;

  std::string name;
  std::vector<int64_t> shape;  ///< kAny: any extent, such as the number of samples
  at::ScalarType dtype = at::kFloat;
};

struct IoNodes {
  std::vector<IoNode> inputs, outputs;
};

/// Reads io_nodes.json. A node without `dtype` is float32. Throws Error(kBadData) if the file has
/// another form, and as files::read().
IoNodes read_io_nodes(const std::filesystem::path& path);

/// Returns the input tensors in `feed`, in the order of the nodes. For a network with one input the
/// key `inputs` is accepted too, whatever the input's name is.
///
/// Throws Error(kBadData) if an input is missing or has another shape or type. The message names it
/// and both sides. source: name of the network, for messages.
std::vector<at::Tensor> inputs_in(const coord::DataMap& feed, const IoNodes& nodes,
                                  const std::string& source);

/// Returns the names of the nodes, as keys of maps.
std::vector<std::string> keys_of(const std::vector<IoNode>& nodes);

/// Name of a type as io_nodes.json writes it: float32, int64, ...
std::string dtype_name(at::ScalarType dtype);

}  // namespace lockstep::infer
