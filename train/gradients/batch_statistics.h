#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dist/communicator.h"
#include "model/model.h"
#include "recal/timeline/timeline.h"

namespace lockstep::train {

/// Keeps the moving statistics of batch normalisation equal on all ranks, bit for bit, at the end
/// of every step. So users of the statistics between steps (evaluation, saves, replica_check) need
/// no communication. train.batch_norm selects the samples that count:
///   broadcast  rank 0's; each rank normalises by its own samples
///   average    those of all ranks, weighted by their number, added in rank order; each rank
///              normalises by its own samples
///   sync       those of all ranks as one batch, in forward and backward too
/// A skipped step changes nothing. Without batch normalisation no call sends a message.
class BatchStatistics {
 public:
  /// All arguments outlive this. Collective for sync, which creates a communicator.
  BatchStatistics(model::Model& model, dist::Communicator& control, const std::string& mode);
  ~BatchStatistics();
  BatchStatistics(const BatchStatistics&) = delete;
  BatchStatistics& operator=(const BatchStatistics&) = delete;

  /// True if forward and backward are collective: then ranks without samples run them too.
  bool needs_every_rank() const { return sums_ != nullptr; }

  /// Seconds that forward and backward have waited for other ranks' sums since the last call.
  double take_wait_s() { return std::exchange(wait_s_, 0); }

  /// Freezes the statistics if a recipe says so at `step`. Call it before the forward pass.
  void follow(const recal::Timeline& timeline, int64_t step);

  /// Takes the statistics of the forward passes since the last call, on the model's device.
  /// give_seen() passes them to the next end_step(), as if its own forward passes had seen them.
  model::SeenStatistics take_seen() { return norms_.take_seen(); }
  void give_seen(model::SeenStatistics seen) { given_ = std::move(seen); }

  /// Takes the statistics of a part of the batch, for sums that are computed elsewhere
  /// (train/gradients/elastic.h). Returns float64 [1 + M] on the CPU: `number` first, then the
  /// statistics since the last call. give_seen_after() takes the sums of such tensors and returns
  /// the sum of the numbers. Neither changes the moving statistics.
  at::Tensor take_seen_after(double number);
  double give_seen_after(const at::Tensor& sums_V);

  /// Ends a step, when all ranks know whether the update counts. Collective if `updated`: one
  /// message, none for sync. With one rank, or for sync, the host does not wait.
  void end_step(bool updated);

 private:
  at::Tensor summed_over_ranks(const at::Tensor& message_M);

  model::BatchNormTable& norms_;
  dist::Communicator& control_;
  const bool from_root_;
  std::unique_ptr<dist::Communicator> sums_;    ///< sync over several ranks
  at::Tensor given_M_;                          ///< from give_seen_after(), in this step
  std::optional<model::SeenStatistics> given_;  ///< from give_seen(), in this step
  double wait_s_ = 0;
  bool has_followed_ = false;
};

}  // namespace lockstep::train
