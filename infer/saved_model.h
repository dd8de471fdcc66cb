#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "coord/data_map.h"

/// Exports of a run opened for inference, with their inputs and outputs.
namespace lockstep::infer {

/// Input or output of a network: an entry of a run's io_nodes.json (docs/export.md).
struct IoNode {
  static constexpr int64_t kAny = -1;
  /// Type of inputs that the user's code accepts as numbers and as tokens.
  static constexpr at::ScalarType kFloatOrInt = at::ScalarType::Undefined;

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

namespace torch::jit {
struct Module;
}

namespace lockstep::infer {

struct OnnxGraph;

/// Trained network with its weights, in evaluation, on the CPU: the input for an engine.
struct LoadedNetwork {
  std::string source;  ///< folder of an export, or prefix of a checkpoint
  int64_t step = 0;    ///< step of the run that trained it
  IoNodes nodes;
  std::vector<std::string> class_names = {};  ///< by class number; empty: unknown
  /// TorchScript module, which needs no code of the model. Null: `forward` computes.
  std::shared_ptr<torch::jit::Module> module;
  /// Graph of the network's ONNX form, which engine sparse computes; null: unknown.
  std::shared_ptr<const OnnxGraph> graph = nullptr;
  /// Own code of a network without a TorchScript form: inputs_BX -> outputs_BO.
  std::function<at::Tensor(const at::Tensor& inputs_BX)> forward;
};

/// Opens an export, RUN/saved_models/<step>. Reads model.pt, which must match manifest.json, and
/// io_nodes.json of the same folder or of RUN/checkpoints (else the manifest's shapes).
/// `with_graph`: reads model.onnx too, if the export has it.
///
/// Throws Error(kInputMissing) if the folder does not exist. Throws Error(kBadData) if the export
/// has no manifest, is truncated or changed, or is newer than `program_version`.
LoadedNetwork open_saved_model(const std::filesystem::path& folder,
                               const std::string& program_version, bool with_graph = false);

/// Opens an ONNX file: an export of Lockstep, or one of another program with float32 tensors. A
/// manifest next to it is not needed. Throws Error(kInputMissing) if the file does not exist.
/// Throws Error(kBadData) if it is damaged.
LoadedNetwork open_onnx(const std::filesystem::path& file);

/// Opens RUN/checkpoints/inference_graph, the first export of the run, with the io_nodes.json of
/// the same folder. The weights are those of that export. Throws Error(kInputMissing) if the file
/// does not exist, Error(kBadData) if one of the files cannot be read.
LoadedNetwork open_inference_graph(const std::filesystem::path& checkpoints);

/// Returns the steps of the exports in RUN/saved_models, ascending. Folders with other names (+5,
/// 05) are ignored.
std::vector<int64_t> published_steps(const std::filesystem::path& saved_models);

/// Returns the export with the highest step in RUN/saved_models. Throws Error(kInputMissing) if
/// there is none.
std::filesystem::path newest_saved_model(const std::filesystem::path& saved_models);

/// Loads a TorchScript archive. Throws Error(kBadData), naming `source`, if LibTorch cannot.
std::shared_ptr<torch::jit::Module> load_torchscript(const std::string& bytes,
                                                     const std::string& source);

/// Returns the name of the first argument of the module's forward.
std::string input_name(const torch::jit::Module& module);

}  // namespace lockstep::infer
