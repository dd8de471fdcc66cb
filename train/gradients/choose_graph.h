#pragma once

#include <memory>
#include <string>

#include "base/device/device_graph.h"
#include "dist/communicator.h"
#include "model/model.h"

namespace lockstep::train {

/// The facts that decide whether a rank's passes may be recorded; equal on all ranks.
struct GraphQuestion {
  std::string wanted = "auto";  ///< train.cuda_graphs
  const model::Model& model;
  dist::Communicator& gradients;
  bool repeats_itself = false;   ///< network and loss are declared to repeat the same work
  bool steps_alone = false;      ///< sync.sync_replicas: false
  bool sums_batch_norm = false;  ///< train.batch_norm: sync
  bool keeps_tensors = false;    ///< a callback or hook reads the tensors of the network
  bool memory_at_start = false;  ///< the GPU's memory is reserved at the start (section gpu)
};

/// Creates the graph that records training passes on a GPU (train/gradients/recorded_pass.h). Null
/// if recording is off or impossible; with `on`, rank 0 then warns with the reason. Null on CPUs.
std::shared_ptr<DeviceGraph> choose_graph(const GraphQuestion& question);

}  // namespace lockstep::train
