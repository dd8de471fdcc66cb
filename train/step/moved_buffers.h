#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/Storage.h>

#include "dist/communicator.h"
#include "model/model.h"

namespace lockstep::train {

/// Tensors that a network's own code may change in forward (model::Buffer::moved_by_forward): the
/// running statistics of PyTorch's batch normalisation, a teacher's frozen parameters, buffers that
/// no save holds. Those that a step moved on any rank are equal on all ranks at its end, bit for
/// bit; the others do not travel. train.batch_norm says how:
///   broadcast  rank 0's
///   average    floats, complex ones too: the mean over the ranks that have samples, weighted by
///              their number; whole numbers: the largest
/// A skipped step changes nothing. Without such tensors no call does anything.
///
/// Tensors that a save holds keep their shape and type. A tensor that no save holds may grow, as a
/// cache does. From then on each rank has its own.
///
/// A tensor has moved if its memory or its version is another one. Code that writes by `.data`
/// leaves both as they are, so the first steps, and then some, compare sums over the bytes too;
/// what was found so counts as moved in every step from then on.
class MovedBuffers {
 public:
  /// Both outlive it.
  MovedBuffers(model::Model& model, dist::Communicator& control, const std::string& mode,
               bool elastic);

  /// Before the step's first forward pass.
  void begin_step();
  /// After the verdict on the step, on every rank. num_samples: this rank's. Collective if
  /// `updated`. Throws Error(kConfig).everywhere() where something moved and train.batch_norm is
  /// sync, or `elastic`: shard by shard it would move as often as there are shards; and where what
  /// a save holds got another shape or type.
  void end_step(bool updated, int64_t num_samples);

 private:
  /// Effect of a step on a tensor; of several ranks the largest one counts. kReshaped: the tensor
  /// no longer has the shape and type that it had in the constructor.
  enum class Move : int64_t { kNone, kMoved, kReshaped };

  /// One tensor as it was when it was last looked at.
  struct Seen {
    std::vector<int64_t> sizes = {};  ///< at first, as the type
    at::ScalarType type = at::kFloat;
    c10::Storage memory = {};  ///< kept, so that no other tensor gets its address
    const void* place = nullptr;
    uint32_t version = 0;
    int64_t sum_of_bits = 0;    ///< only in steps that look
    at::Tensor copy = {};       ///< values that a skipped step restores; undefined: none is kept
    bool is_copy_old = false;   ///< the values have moved since
    bool has_moved = false;     ///< in some step
    bool moves_unseen = false;  ///< by `.data`
  };

  /// Saved ones first.
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
  size_t num_saved_ = 0;    ///< rows
};

}  // namespace lockstep::train
