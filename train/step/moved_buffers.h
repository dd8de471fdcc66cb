#pragma once

#include <string>
#include <vector>

#include "dist/communicator.h"
#include "model/model.h"

namespace lockstep::train {

/// Buffers that a network's own code changes in forward (model::Buffer::moved_by_forward), such as
/// the running statistics of PyTorch's batch normalisation: equal on all ranks at the end of every
/// step, bit for bit. train.batch_norm says how:
///   broadcast  rank 0's
///   average    floats, complex ones too: the ranks' mean, weighted by their samples; whole
///              numbers: the largest
/// sync is refused where there are such buffers: it takes layers of Lockstep's own. A skipped step
/// changes nothing. Without such buffers no call does anything.
class MovedBuffers {
 public:
  /// Both outlive it. Throws Error(kConfig) for sync, and where `elastic`: shard by shard they
  /// would be moved as often as there are shards.
  MovedBuffers(model::Model& model, dist::Communicator& control, const std::string& mode,
               bool elastic);

  /// Before the step's first forward pass.
  void begin_step();
  /// After the verdict on the step, on every rank. num_samples: this rank's. Collective if
  /// `updated`.
  void end_step(bool updated, int64_t num_samples);

 private:
  std::vector<at::Tensor> tensors() const;  // complex ones as pairs of floats
  void take_mean(const std::vector<at::Tensor>& all, int64_t num_samples);
  void take_largest(const std::vector<at::Tensor>& all);

  model::Model& model_;
  dist::Communicator& control_;
  const bool from_root_;
  bool has_any_ = false;
  std::vector<at::Tensor> before_;  ///< copies, of begin_step()
};

}  // namespace lockstep::train
