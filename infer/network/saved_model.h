#pragma once

#include <filesystem>
#include <string>

#include "infer/network/loaded_network.h"

namespace lockstep::infer {

/// Opens an export, RUN/saved_models/<step>: model.pt, whose bytes are those that manifest.json
/// tells of, and io_nodes.json beside it or in RUN/checkpoints (else the manifest's shapes).
///
/// Throws Error(kInputMissing) if there is no such folder; Error(kBadData) for an export without a
/// manifest, one that is cut or was changed, or was written by a Lockstep newer than
/// `program_version`.
LoadedNetwork open_saved_model(const std::filesystem::path& folder,
                               const std::string& program_version);

/// Opens RUN/checkpoints/inference_graph, the first export of the run, with io_nodes.json beside
/// it. Its weights are those of that export. Throws Error(kInputMissing) if the file is not there;
/// Error(kBadData) if either file cannot be read.
LoadedNetwork open_inference_graph(const std::filesystem::path& checkpoints);

/// The export of the highest step in RUN/saved_models. Throws Error(kInputMissing) if there is
/// none.
std::filesystem::path newest_saved_model(const std::filesystem::path& saved_models);

/// A TorchScript archive. Throws Error(kBadData) naming `source` if LibTorch cannot load it.
std::shared_ptr<torch::jit::Module> load_torchscript(const std::string& bytes,
                                                     const std::string& source);

/// The name of the first argument of its forward.
std::string input_name(const torch::jit::Module& module);

}  // namespace lockstep::infer
