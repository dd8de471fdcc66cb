#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Storage.h>

#include "dist/communicator.h"
#include "model/model.h"

namespace lockstep::train {

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
