#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dist/reduction_modes.h"
#include "train/step/step_part.h"

/// Elastic runs, which give equal bits on 1, 2, 4 and 8 ranks, and local steps.
namespace lockstep::train {

/// Mode in which all ranks reduce their gradients in each step.
class Synchronous final : public StepMode {
 public:
  explicit Synchronous(dist::Communicator& all) : StepMode(all) {}
};

/// Number of shards for `run.deterministic: elastic`. The global batch is always cut into this many
/// contiguous shards, each with a separate forward and backward pass. Their gradients are added
/// along one fixed binary tree. World sizes that divide this number give the same bits.
constexpr int kElasticShards = 8;

/// True if a world of this size can be elastic: 1, 2, 4 or 8 ranks.
bool is_elastic_world_size(int world_size);

/// Returns the shards of one rank, in order, as ranges of that rank's part of the global batch.
/// Shards of a small batch may be empty.
std::vector<data::Shard> elastic_shards(int64_t global_num_samples, int rank, int world_size);

/// Adds the gradients of one rank's shards along the part of the tree below this rank: ((0 + 1) +
/// (2 + 3)) + ((4 + 5) + (6 + 7)) for a single rank. The communicator continues the tree
/// (dist/tensor_math.h) in the same shape. Keeps at most log2(num_shards) sums, each as
/// large as all gradients.
class ShardTree {
 public:
  /// num_shards: a power of two.
  explicit ShardTree(int num_shards) : num_shards_(num_shards) {}

  /// Adds the next shard, whose gradients are in the buffers. Unless it is the last, they are
  /// copied; zero the buffers then. After the last shard the buffers contain the sum of all.
  /// Returns numbers_V, added in the same way.
  at::Tensor add(std::vector<FlatBuffer>& buffers, at::Tensor numbers_V);

 private:
  /// Sum over 2^level shards.
  struct Node {
    int level = 0;
    std::vector<at::Tensor> grads;  // [E] by buffer; undefined where frozen
    at::Tensor numbers_V;
  };

  void keep(std::vector<FlatBuffer>& buffers, int level, at::Tensor numbers_V);

  int num_shards_;
  int num_added_ = 0;
  size_t num_kept_ = 0;
  std::vector<Node> kept_;  // the first num_kept_ contain sums, levels falling
};

/// Mode whose bits do not depend on the number of ranks: 1, 2, 4 or 8. Synchronous otherwise.
class Elastic final : public StepMode {
 public:
  explicit Elastic(dist::Communicator& all)
      : StepMode(all), tree_(kElasticShards / all.world_size()) {}

  bool is_elastic() const override { return true; }
  LossSum compute_gradients(const data::Batch& batch, const PassRequest& request,
                            TrainingPass& pass) override;

 private:
  ShardTree tree_;
};

/// Local steps with periodic averages (`sync.sync_replicas: false`, "local SGD"). Between two
/// averages each rank updates its own weights with its own samples, without messages. An average
/// makes weights, optimizer slots, moving statistics and the EMA equal on all ranks, bit for bit.
/// It is the sum in rank order over N; each rank has the same weight.
///
/// Parameters frozen by the recipe or the run file are equal already, and their slots too; they are
/// not sent. A user's network may change its parameters without gradients in its own code: they are
/// sent.
///
/// Slots are averaged too, so that a save contains the one state from which all ranks continue.
/// Sources: Stich, arXiv 1805.09767 (weights); Yu et al., arXiv 1905.03817 (momentum).
///
/// A rank's gradient is N times the contribution of its samples to the gradient of the mean loss
/// over the global batch. So one local step of sgd between averages equals the synchronous step,
/// for any number of samples on each rank.
class LocalSteps final : public StepMode {
 public:
  /// all: communicator of all ranks; only local steps use it. statistics_of_root: an average takes
  /// rank 0's moving statistics, not their mean.
  LocalSteps(dist::Communicator& all, const dist::SyncOptions& options, bool statistics_of_root)
      : StepMode(all),
        sync_every_(options.sync_every),
        bucket_bytes_(options.bucket_bytes),
        statistics_of_root_(statistics_of_root) {}

  dist::Communicator& peers() override { return alone_; }
  bool is_local() const override { return true; }
  /// Keeps the statistics for the next average. Returns them without votes and damaged samples.
  dist::LocalStepStats contribute(const dist::LocalStepStats& local) override;
  /// Averages if that is due. That is after every sync_every steps, and at the end of each epoch
  /// and of the run. It is also before a step at which the recipe changes masks, weights or the
  /// trained set. A function of the step, equal on all ranks.
  void join(const TrainerParts& parts, StepLimits* limits, StepReport* report) override;

  /// Averages the state of all ranks and returns the totals since the last average. These are loss
  /// over the samples of the updates that counted, votes, damaged samples. num_nonfinite_ranks
  /// counts the ranks without such an update. Collective.
  dist::GlobalStepStats average(const TrainerParts& parts);

 private:
  bool is_average_due(const TrainerParts& parts) const;
  void average_statistics(const std::vector<at::Tensor>& statistics);

  const int64_t sync_every_, bucket_bytes_;
  const bool statistics_of_root_;
  dist::SelfCommunicator alone_;
  dist::LocalStepStats step_;     // of the current step
  dist::LocalStepStats pending_;  // since the last average
  bool has_updated_ = false;      // since the last average
};

}  // namespace lockstep::train
