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
  bool repeats_itself = false;   ///< the rows of network and loss say so
  bool steps_alone = false;      ///< sync.sync_replicas: false
  bool sums_batch_norm = false;  ///< train.batch_norm: sync
  bool keeps_tensors = false;    ///< somebody reads what went through the network
  bool memory_at_start = false;  ///< the share of the GPU is taken at the start (section gpu)
};

/// What records the training passes of a GPU (train/gradients/recorded_pass.h); null where they are
/// not to be recorded, or cannot be: `on` then warns, with the reason, on rank 0. Null on CPUs,
/// which record nothing.
std::shared_ptr<DeviceGraph> choose_graph(const GraphQuestion& question);

}  // namespace lockstep::train
