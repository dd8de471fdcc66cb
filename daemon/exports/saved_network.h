#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/exports/saved_model.h"
#include "model/model.h"

namespace lockstep::daemon {

/// The network that a save belongs to, with the save's weights, in evaluation, without fake
/// quantization.
struct SavedNetwork {
  std::unique_ptr<model::Model> model;
  std::vector<int64_t> input_shape;  ///< of one sample
  int64_t num_classes = 0;
  at::ScalarType input_dtype = at::kFloat;
};

/// Purpose for which a network is rebuilt.
enum class NetworkUse {
  kExport,     ///< written in another form, which a class in Python has none of here
  kInference,  ///< called: also the user's class in Python, whose file must be there
};

/// Whether the save says which network it belongs to, in words that can be exported. Of a class in
/// Python it does not: that code may have changed, or be somewhere else.
bool names_its_network(const SavedModel& saved);

/// Builds the network from what the save says of its run; no run file is read. `beside`: a run file
/// beside which the code of a class in Python may be. Throws Error(kUsage) if the save says nothing
/// or is older than what is needed here, with a way out; Error(kInputMissing) for Python code that
/// is not there, kConfig for what it raises; Error(kBadData) if its settings make no network or not
/// the one whose tensors it holds.
SavedNetwork rebuild_network(const SavedModel& saved, NetworkUse use = NetworkUse::kExport,
                             const std::string& beside = "");

}  // namespace lockstep::daemon
