#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "dist/bucket/buckets.h"

namespace lockstep::dist {

/// What rounding took from the gradients that this rank has sent, by parameter: it is added to the
/// rank's next gradient, so that it is sent later instead of never (1-bit SGD, Seide et al. 2014;
/// EF-SGD, arXiv 1901.09847, with errors of gradients, not of updates).
///
///   begin_step(1);
///   add_to(bucket, grads_E);  ...round grads_E, what that takes into made(bucket)...;  keep();
///
/// Errors stay as they are until keep(), so that a step which does not count leaves no trace.
/// Elements that a mask drops, and parameters without a bucket's gradient since the start, have 0;
/// a frozen parameter keeps what it has.
///
/// Symbols: N = ranks, [E] = elements of a bucket. CPU. One thread at a time, but add_to() and
/// made() of different buckets at once.
class ErrorFeedback {
 public:
  /// All are 0. `params` must outlive this.
  ErrorFeedback(const ParamTable& params, int rank, int num_ranks);

  /// Other buckets of other buffers; the errors stay.
  void follow(const std::vector<Bucket>& buckets, const std::vector<FlatBuffer>& buffers);

  /// `factor`: a power of two by which the step's gradients are multiplied (the loss scale); errors
  /// are kept without it.
  void begin_step(int64_t factor);
  /// grads_E += the errors, once in a step: the second call does nothing.
  void add_to(size_t bucket, const at::Tensor& grads_E);
  /// [E] where the errors of this step's rounding are to be written.
  const at::Tensor& made(size_t bucket) const { return made_by_bucket_[bucket]; }
  /// The step counts: its errors are those that the next one begins with.
  void keep();

  /// Of a bucket's elements those that a mask drops owe nothing; `bits` of the whole buffer, as in
  /// base/bits/bit_mask.h.
  void zero_dropped(const Bucket& bucket, size_t index, const uint8_t* bits);
  /// The parameter owes nothing.
  void reset(size_t param) { own_by_param_.at(param).zero_(); }

  /// `_lockstep/sync/errors_of_N_ranks/PARAMETER` [N, shape], of which each rank has its row; a
  /// save without it, such as one of another number of ranks: 0.
  StateList state() const;

 private:
  /// Elements begin_E to begin_E + own_E.numel() of a bucket.
  struct Segment {
    int64_t begin_E = 0;
    at::Tensor own_E;  ///< the errors of part of a parameter
  };

  const ParamTable& params_;
  const int rank_, num_ranks_;
  double factor_ = 1;
  // by parameter
  std::vector<at::Tensor> all_by_param_,
      own_by_param_;  ///< [N, shape]; [elements], this rank's row
  // by bucket
  std::vector<std::vector<Segment>> segments_by_bucket_;
  std::vector<at::Tensor> made_by_bucket_;
  std::vector<uint8_t> is_added_by_bucket_;  ///< in this step
};

}  // namespace lockstep::dist
