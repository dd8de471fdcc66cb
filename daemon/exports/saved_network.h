#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/exports/saved_model.h"
#include "model/model.h"

namespace lockstep::daemon {

/// Network of a checkpoint with the checkpoint's weights, in evaluation mode, without fake
/// quantization.
struct SavedNetwork {
  std::unique_ptr<model::Model> model;
  std::vector<int64_t> input_shape;  ///< of one sample
  int64_t num_classes = 0;
  at::ScalarType input_dtype = at::kFloat;
};

/// Purpose for which a network is rebuilt.
enum class NetworkUse {
  kExport,     ///< written in another form; a network in Python cannot be
  kInference,  ///< called; may be the user's class in Python, whose file must exist
};

/// True if the checkpoint says which network it belongs to, in a form that can be exported. False
/// for a class in Python: its code may have changed or moved.
bool names_its_network(const SavedModel& saved);

/// Builds the network from the settings in the checkpoint. Reads no run file. `beside`: a run file
/// whose folder may contain the code of a class in Python.
///
/// Throws Error(kUsage), with a way out, if the checkpoint has no settings or is older than
/// required. Throws Error(kInputMissing) for missing Python code, kConfig for an exception of that
/// code. Throws Error(kBadData) if the settings make no network, or one with other tensors.
SavedNetwork rebuild_network(const SavedModel& saved, NetworkUse use = NetworkUse::kExport,
                             const std::string& beside = "");

}  // namespace lockstep::daemon
