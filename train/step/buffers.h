#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>

#include "train/step/step_part.h"

/// Buffers that a network's forward pass changes, kept equal on all ranks.
namespace lockstep::train {

/// Returns learning rate and weight decay of each parameter group for the update at `step` (the
/// number of updates done before it): the recipe's, else the optimizer's own. Pure.
optim::StepRates rates_at(int64_t step, const optim::OptimizerOptions& options,
                          const recal::Timeline& timeline, int64_t total_steps);

/// Assigns parameters to buffers. A buffer contains parameters of one group and one dtype that are
/// all trainable or all frozen, up to bucket_bytes. `trainable`: by parameter. A pure function,
/// equal on all ranks.
optim::BufferPlan plan_layout(const ParamTable& params, const std::vector<bool>& trainable,
                              int64_t bucket_bytes);

/// Freezes and unfreezes: lays out parameters and gradients for this set of trainable parameters
/// (by parameter). Values are kept. Returns the old buffers, for owners of tensors with the same
/// layout. Collective: throws Error(kDisagree).everywhere() if the ranks' plans differ.
std::vector<FlatBuffer> flatten_for(const std::vector<bool>& trainable, int64_t bucket_bytes,
                                    optim::FlatParams& flat_params, dist::Communicator& control);

/// Returns the mask bits of one buffer's elements (base/simd/bit_mask.h); empty if all are kept.
std::vector<uint8_t> kept_bits_of(const FlatBuffer& buffer, const recal::MaskTable& masks);

/// Applies the recipe's changes to optimizer and buffers. Moments of pruned weights are zeroed
/// (otherwise they would move the weights), momentum to be reset is zeroed, and frozen parameters
/// leave the buffers. Collective.
void apply_recipe_changes(const recal::AppliedActions& due,
                          const recal::ScheduledModifierManager& recipe, int64_t bucket_bytes,
                          optim::FlatParams& flat_params, optim::Optimizer& optimizer,
                          dist::Communicator& control);

/// The recipe as a part of the step. Its changes reach optimizer, buffers, reducer, and layers that
/// can compute only with kept elements (Param::follow_mask).
///
/// Gradients of pruned weights become +0 (or undefined if they are never read) and need not travel;
/// their moments are not kept.
class RecipePart final : public StepPart {
 public:
  explicit RecipePart(const TrainerParts& parts) : parts_(parts) {}

  void on_recipe_change(const recal::AppliedActions& due) override;
  void agree(StepEnd end, int64_t) override {
    parts_.recipe.agree(end == StepEnd::kUpdated, parts_.control);
  }
  void end_step(StepEnd end, int64_t) override {
    parts_.recipe.end_step(end == StepEnd::kUpdated, parts_.control);
  }

 private:
  void set_masks();

  const TrainerParts& parts_;
  bool has_set_masks_ = false;  ///< false before the first step, since a restore may change masks
};

/// Keeps the moving statistics of batch normalisation equal on all ranks, bit for bit, at the end
/// of every step. So users of the statistics between steps (evaluation, saves, replica_check) need
/// no communication. train.batch_norm selects the samples that count:
///   broadcast  rank 0's; each rank normalises by its own samples
///   average    those of all ranks, weighted by their number, added in rank order; each rank
///              normalises by its own samples
///   sync       those of all ranks as one batch, in forward and backward too
/// A skipped step changes nothing. Without batch normalisation no call sends a message.
class BatchStatistics final : public StepPart {
 public:
  /// mode: train.batch_norm. Collective for sync, which creates a communicator.
  BatchStatistics(const TrainerParts& parts, const std::string& mode);
  ~BatchStatistics() override;
  BatchStatistics(const BatchStatistics&) = delete;
  BatchStatistics& operator=(const BatchStatistics&) = delete;

  /// True if forward and backward are collective: then ranks without samples run them too.
  bool needs_every_rank() const { return sums_ != nullptr; }

  /// Seconds that forward and backward have waited for other ranks' sums since the last call.
  double take_wait_s() { return std::exchange(wait_s_, 0); }

  /// Freezes the statistics if the recipe says so at this step.
  void begin_step() override;

  /// Takes the statistics of the forward passes since the last call, on the model's device.
  /// give_seen() passes them to the next end_step(), as if its own forward passes had seen them.
  model::SeenStatistics take_seen() { return norms_.take_seen(); }
  void give_seen(model::SeenStatistics seen) { given_ = std::move(seen); }

  /// Takes the statistics of a part of the batch, for sums that are computed elsewhere
  /// (train/step/step_modes.h). Returns float64 [1 + M] on the CPU: `number` first, then the
  /// statistics since the last call. unpack_seen() takes the sums of such tensors and returns
  /// the sum of the numbers. Neither changes the moving statistics.
  at::Tensor pack_seen(double number);
  double unpack_seen(const at::Tensor& sums_V);

  /// Collective if the update counts: one message, none for sync. With one rank, or for sync, the
  /// host does not wait.
  void agree(StepEnd end, int64_t) override;
  void end_step(StepEnd end, int64_t) override;

 private:
  at::Tensor summed_over_ranks(const at::Tensor& message_M);

  const TrainerParts& parts_;
  model::BatchNormTable& norms_;
  dist::Communicator& peers_;
  const bool from_root_;
  std::unique_ptr<dist::Communicator> sums_;     ///< sync over several ranks
  at::Tensor given_M_;                           ///< from unpack_seen(), in this step
  std::optional<model::SeenStatistics> given_;   ///< from give_seen(), in this step
  std::optional<model::SeenStatistics> agreed_;  ///< of all ranks, from agree()
  double wait_s_ = 0;
  bool has_begun_ = false;
};

/// Sets integers to their maximum over the ranks, or to rank 0's. Collective unless there are none.
void take_largest(dist::Communicator& comm, const std::vector<at::Tensor>& numbers,
                  bool from_root = false);

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
class MovedBuffers final : public StepPart {
 public:
  /// Both references outlive this.
  MovedBuffers(model::Model& model, dist::Communicator& control, const std::string& mode,
               bool elastic);

  void begin_step() override;
  /// Collective if the update counts. Throws Error(kConfig).everywhere() if a tensor changed and
  /// train.batch_norm is sync, or if `elastic` (the tensor would change once per shard). Also
  /// throws if a tensor in checkpoints got another shape or type.
  void agree(StepEnd end, int64_t num_samples) override;
  void end_step(StepEnd end, int64_t num_samples) override;

 private:
  /// Effect of a step on a tensor, on any rank; the largest value counts. kReshaped: shape or type
  /// differ from those in the constructor.
  enum Move : int64_t { kNone, kMoved, kReshaped };

  /// State of one tensor when it was last examined.
  struct LastState {
    std::vector<int64_t> sizes = {};  ///< initial sizes
    at::ScalarType type = at::kFloat;
    c10::Storage storage = {};  ///< kept, so that no other tensor gets its address
    const void* address = nullptr;
    uint32_t version = 0;
    int64_t sum_of_bits = 0;            ///< only in steps that compare bytes
    at::Tensor copy = {};               ///< values that a skipped step restores; undefined: no copy
    bool is_copy_old = false;           ///< the values have changed since the copy
    bool has_moved = false;             ///< in any step
    bool changed_through_data = false;  ///< through `.data`
  };

  /// Returns all rows, those in checkpoints first.
  std::vector<model::Buffer> rows() const;
  /// True if this step compares sums over the bytes.
  bool compares_bytes() const;
  bool is_like_first(const at::Tensor& tensor, const LastState& last) const;
  bool differs(const at::Tensor& tensor, const LastState& last) const;
  void remember(const at::Tensor& tensor, LastState* last) const;
  void keep_copy(const at::Tensor& tensor, LastState* last) const;
  /// Returns the Move of each row on this rank.
  std::vector<int64_t> moves_here(const std::vector<model::Buffer>& rows);
  void restore(const std::vector<model::Buffer>& rows, const std::vector<int64_t>& moves);
  void require_may_move(const std::string& name) const;
  [[noreturn]] void refuse_reshaped(const model::Buffer& row, const LastState& last) const;
  void take_mean(const std::vector<at::Tensor>& floats, int64_t num_samples);

  model::Model& model_;
  dist::Communicator& control_;
  const std::string mode_;
  const bool elastic_;
  int64_t num_steps_ = 0;                      ///< of this process
  std::vector<LastState> last_;                ///< by row
  size_t num_saved_ = 0;                       ///< number of rows in checkpoints
  std::optional<std::vector<int64_t>> moves_;  ///< Move by row, of all ranks; set by agree()
};

}  // namespace lockstep::train
