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
/// of every step, so that whoever looks at them between steps (evaluation, saves, replica_check)
/// has nothing to do. train.batch_norm says whose samples count:
///   broadcast  rank 0's; each rank normalises by its own samples
///   average    all ranks', weighted by their numbers of samples, added in rank order; each rank
///              normalises by its own samples
///   sync       all ranks' as one batch, in forward and backward too
/// A step that was skipped moves nothing. Without batch normalisation no call sends a message.
class BatchStatistics {
 public:
  /// All must outlive it. Collective for sync, which gets a communicator of its own.
  BatchStatistics(model::Model& model, dist::Communicator& control, const std::string& mode);
  ~BatchStatistics();
  BatchStatistics(const BatchStatistics&) = delete;
  BatchStatistics& operator=(const BatchStatistics&) = delete;

  /// Whether forward and backward are collective: ranks without samples make them too.
  bool needs_every_rank() const { return sums_ != nullptr; }

  /// Seconds that forward and backward have waited for other ranks' sums since the last call.
  double take_wait_s() { return std::exchange(wait_s_, 0); }

  /// Before the forward pass at `step`: statistics stay from where a recipe freezes them on.
  void follow(const recal::Timeline& timeline, int64_t step);

  /// What forward passes saw since the last call, on the model's device. Given back it is what the
  /// next end_step() takes, as if its forward passes had seen it.
  model::SeenStatistics take_seen() { return norms_.take_seen(); }
  void give_seen(model::SeenStatistics seen) { given_ = std::move(seen); }

  /// Statistics of a part of the batch, for sums that are taken elsewhere
  /// (train/gradients/elastic.h): float64 [1 + M] on the CPU, `number` first, then what was seen
  /// since the last call. give_seen_after() takes the sums of such tensors and returns the sum of
  /// the numbers. Neither changes the moving statistics.
  at::Tensor take_seen_after(double number);
  double give_seen_after(const at::Tensor& sums_V);

  /// After the verdict on the step. Collective if `updated`: one message, none for sync. Alone, or
  /// for sync, the host waits for nothing.
  void end_step(bool updated);

 private:
  at::Tensor summed_over_ranks(const at::Tensor& message_M);

  model::BatchNormTable& norms_;
  dist::Communicator& control_;
  const bool from_root_;
  std::unique_ptr<dist::Communicator> sums_;    ///< sync over several ranks
  at::Tensor given_M_;                          ///< by give_seen_after(), in this step
  std::optional<model::SeenStatistics> given_;  ///< by give_seen(), in this step
  double wait_s_ = 0;
  bool has_followed_ = false;
};

}  // namespace lockstep::train
