#pragma once

#include <cstdint>
#include <memory>
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

/// Whether the save says which network it belongs to, in words that this program can build. The
/// user's class in Python it cannot: that code may have changed, or be somewhere else.
bool names_its_network(const SavedModel& saved);

/// Builds the network from what the save says of its run; no run file is read. Throws
/// Error(kUsage) if it says nothing or is older than what is needed here, with a way out;
/// Error(kBadData) if its settings make no network or not the one whose tensors it holds.
SavedNetwork rebuild_network(const SavedModel& saved);

}  // namespace lockstep::daemon
