#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "coord/data_map.h"

namespace lockstep::infer {

/// What a network takes or gives: io_nodes.json of a run (docs/export.md).
struct IoNode {
  static constexpr int64_t kAny = -1;

  std::string name;
  std::vector<int64_t> shape;  ///< kAny: any extent, as of the samples
  at::ScalarType dtype = at::kFloat;
};

struct IoNodes {
  std::vector<IoNode> inputs, outputs;
};

/// Reads io_nodes.json. A node without `dtype` is float32. Throws Error(kBadData) for what is no
/// such file; as files::read().
IoNodes read_io_nodes(const std::filesystem::path& path);

/// The tensors of the inputs in `feed`, in the order of the nodes. Of a network with one input the
/// key `inputs` stands for it too, whatever its name is.
///
/// Throws Error(kBadData) where an input is not there, or is not a tensor of that shape and type;
/// the text names it and both sides. `source`: whose nodes these are.
std::vector<at::Tensor> inputs_in(const coord::DataMap& feed, const IoNodes& nodes,
                                  const std::string& source);

/// Their names, as keys of maps.
std::vector<std::string> keys_of(const std::vector<IoNode>& nodes);

/// float32, int64, ...: as io_nodes.json writes types.
std::string dtype_name(at::ScalarType dtype);

}  // namespace lockstep::infer
