#pragma once

#include <filesystem>
#include <string>

#include "infer/network/loaded_network.h"

namespace lockstep::infer {

/// Opens an export, RUN/saved_models/<step>. Reads model.pt, which must match manifest.json, and
/// io_nodes.json of the same folder or of RUN/checkpoints (else the manifest's shapes).
///
/// Throws Error(kInputMissing) if the folder does not exist. Throws Error(kBadData) if the export
/// has no manifest, is truncated or changed, or is newer than `program_version`.
LoadedNetwork open_saved_model(const std::filesystem::path& folder,
                               const std::string& program_version);

/// Opens RUN/checkpoints/inference_graph, the first export of the run, with the io_nodes.json of
/// the same folder. The weights are those of that export. Throws Error(kInputMissing) if the file
/// does not exist, Error(kBadData) if one of the files cannot be read.
LoadedNetwork open_inference_graph(const std::filesystem::path& checkpoints);

/// Returns the export with the highest step in RUN/saved_models. Throws Error(kInputMissing) if
/// there is none.
std::filesystem::path newest_saved_model(const std::filesystem::path& saved_models);

/// Loads a TorchScript archive. Throws Error(kBadData), naming `source`, if LibTorch cannot.
std::shared_ptr<torch::jit::Module> load_torchscript(const std::string& bytes,
                                                     const std::string& source);

/// Returns the name of the first argument of the module's forward.
std::string input_name(const torch::jit::Module& module);

}  // namespace lockstep::infer
