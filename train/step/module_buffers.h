#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>

#include "dist/communicator.h"
#include "model/model.h"
#include "recal/schedule/timeline.h"

/// Buffers that a network's forward pass changes, kept equal on all ranks.
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
  /// (train/step/sync_modes.h). Returns float64 [1 + M] on the CPU: `number` first, then the
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

/// Tensors that a network's own code may change in forward (model::Buffer::moved_by_forward).
/// Examples: the running statistics of PyTorch's batch normalisation, a teacher's frozen
/// parameters, buffers outside of checkpoints. Tensors that a step changed on any rank are equal on
/// all ranks at its end, bit for bit. Unchanged tensors are not sent. train.batch_norm selects the
/// method:
///   broadcast  rank 0's values
///   average    floats (and complex numbers): the mean over ranks with samples, weighted by their
///              number; integers: the maximum
/// A skipped step changes nothing. Without such tensors no call has an effect.
///
/// Tensors in checkpoints keep their shape and type. Others may grow, like a cache; from then on
/// they belong to each rank alone.
///
/// A tensor counts as changed if its memory or its version changed. Code that writes through
/// `.data` changes neither. So the first steps, and some later ones, also compare sums over the
/// bytes. A tensor found changed in this way counts as changed in every later step.
class MovedBuffers {
 public:
  /// Both references outlive this.
  MovedBuffers(model::Model& model, dist::Communicator& control, const std::string& mode,
               bool elastic);

  /// Begins a step, before its first forward pass.
  void begin_step();
  /// Ends a step, on every rank, when all ranks know whether the update counts. num_samples: this
  /// rank's. Collective if `updated`. Throws Error(kConfig).everywhere() if a tensor changed and
  /// train.batch_norm is sync, or if `elastic` (the tensor would change once per shard). Also
  /// throws if a tensor in checkpoints got another shape or type.
  void end_step(bool updated, int64_t num_samples);

 private:
  /// Effect of a step on a tensor, on any rank; the largest value counts. kReshaped: shape or type
  /// differ from those in the constructor.
  enum class Move : int64_t { kNone, kMoved, kReshaped };

  /// State of one tensor when it was last examined.
  struct Seen {
    std::vector<int64_t> sizes = {};  ///< initial sizes
    at::ScalarType type = at::kFloat;
    c10::Storage memory = {};  ///< kept, so that no other tensor gets its address
    const void* place = nullptr;
    uint32_t version = 0;
    int64_t sum_of_bits = 0;    ///< only in steps that compare bytes
    at::Tensor copy = {};       ///< values that a skipped step restores; undefined: no copy
    bool is_copy_old = false;   ///< the values have changed since the copy
    bool has_moved = false;     ///< in any step
    bool moves_unseen = false;  ///< through `.data`
  };

  /// Returns all rows, those in checkpoints first.
  std::vector<model::Buffer> rows() const;
  bool looks() const;
  bool is_like_first(const at::Tensor& tensor, const Seen& seen) const;
  bool differs(const at::Tensor& tensor, const Seen& seen) const;
  void note(const at::Tensor& tensor, Seen* seen) const;
  void keep_copy(const at::Tensor& tensor, Seen* seen) const;
  std::vector<Move> moves_here(const std::vector<model::Buffer>& rows);
  std::vector<Move> on_any(const std::vector<Move>& here) const;
  void restore(const std::vector<model::Buffer>& rows, const std::vector<Move>& moves);
  void require_may_move(const std::string& name) const;
  [[noreturn]] void refuse_reshaped(const model::Buffer& row, const Seen& seen) const;
  void take_mean(const std::vector<at::Tensor>& floats, int64_t num_samples);
  void take_largest(const std::vector<at::Tensor>& numbers);

  model::Model& model_;
  dist::Communicator& control_;
  const std::string mode_;
  const bool elastic_;
  int64_t num_steps_ = 0;   ///< of this process
  std::vector<Seen> seen_;  ///< by row
  size_t num_saved_ = 0;    ///< number of rows in checkpoints
};

}  // namespace lockstep::train
