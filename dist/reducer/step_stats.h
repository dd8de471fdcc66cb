#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::dist {

/// Requests that any rank may raise and all ranks count: bit i of LocalStepStats::votes. Their
/// meaning is the caller's.
constexpr int kNumVotes = 8;

/// What one rank brings to a step.
struct LocalStepStats {
  double loss_sum = 0;  ///< over this rank's samples
  /// The same where it is still to be computed on a GPU, 0-dimensional: loss_sum and `finite` say
  /// nothing of it then, and the totals do.
  at::Tensor loss_sum_there = {};
  int64_t num_samples = 0;  ///< may be 0, but not on all ranks
  int64_t num_skipped = 0;  ///< damaged samples that others stand for
  bool finite = true;       ///< false: this rank's loss is not finite, and the step must not count
  uint32_t votes = 0;       ///< bits 0 to kNumVotes - 1
  double work_s = 0;        ///< what this rank worked on the step so far, its own share of it
  /// What the ranks' sums of gradients are divided by, equal on all ranks; nothing: the samples of
  /// all ranks. 1 where losses were weighted by 1 / samples before backward: that saves a pass.
  std::optional<int64_t> gradient_divisor = std::nullopt;
  /// Samples of all ranks, equal on them, where a rank may leave its own out: the step is not
  /// complete then, and nobody may update.
  std::optional<int64_t> expected_samples = std::nullopt;
  bool has_left = false;  ///< this rank has left its samples out
  /// Counts of the caller's, 0 or more, as many on all ranks; their sums come back. Where one is
  /// not 0 no update begins before finish() returns.
  std::vector<double> counts = {};
};

/// A rank that works on a step so many times as long as the mean of the others is a straggler.
constexpr double kStragglerRatio = 1.3;

/// What the step was over all ranks; equal on every rank, but for seconds.
struct GlobalStepStats {
  double loss_mean = 0;  ///< sum of losses / num_samples
  int64_t num_samples = 0;
  int64_t num_skipped = 0;
  bool is_complete = true;  ///< false: fewer samples than expected_samples
  /// Ranks whose own loss was not finite; where hosts have not seen theirs, 1 for all together.
  int64_t num_nonfinite_ranks = 0;
  bool gradients_finite = true;  ///< all items of the mean gradient
  /// Of the mean gradient over all parameters that are not frozen, if it was asked for; NaN unless
  /// gradients_finite.
  std::optional<double> squared_grad_norm;
  std::array<int64_t, kNumVotes> votes{};  ///< ranks that raised each bit
  std::vector<double> counts = {};         ///< sums of LocalStepStats::counts

  int64_t bytes_reduced = 0;  ///< payload that this rank handed over for this step
  int64_t bytes_saved = 0;    ///< by packing and narrower types: what dense gradients would add
  /// What a rank must send at least to reduce that payload, whatever the transport: 2 (N - 1) / N
  /// of it, and half as much for gradients of which each rank gets its share only. Over reduce_s it
  /// is the bus bandwidth.
  int64_t bytes_sent = 0;
  double reduce_s = 0;      ///< this rank's time inside the reductions of gradients
  double overlapped_s = 0;  ///< the part of reduce_s hidden behind backward, or the update
  std::vector<double> bucket_s = {};  ///< the parts of reduce_s, by bucket in their order; empty
                                      ///< where nothing travels
  double compute_s = 0;  ///< on a GPU: this rank's time in finish() until its own gradients
                         ///< were computed
  double update_s =
      0;              ///< of the early update (GradientReducer::finish()), in neither of the others
  double wait_s = 0;  ///< from then on, until all gradients were there; beside a communication
                      ///< thread also what it did meanwhile
  double late_wait_s = 0;  ///< the part of it that came after finish() (StepRequests::by_bucket)

  double work_s = 0;      ///< of all ranks together: the sum of their shares' work_s
  double own_work_s = 0;  ///< of this rank

  /// Whether this rank is a straggler of the step; never where it is alone.
  bool is_straggler(int num_ranks) const {
    return num_ranks > 1 && own_work_s > kStragglerRatio * (work_s - own_work_s) / (num_ranks - 1);
  }

  /// Whether to update; one decision for all ranks.
  bool finite() const { return is_complete && num_nonfinite_ranks == 0 && gradients_finite; }
  /// Whether all counts are 0.
  bool counts_nothing() const {
    return std::all_of(counts.begin(), counts.end(), [](double count) { return count == 0; });
  }
};

/// What it took to give every rank all values.
struct GatherTotals {
  int64_t bytes_gathered = 0;  ///< payload of all ranks together; each sends 1 / N of it to all
  int64_t bytes_saved = 0;     ///< by packing: what dense values would add
  double gather_s = 0;         ///< this rank's time
};

/// The share as numbers whose sums over ranks make the totals: float64 [V] on `device`.
at::Tensor to_numbers(const LocalStepStats& share, at::Device device);

/// GlobalStepStats::finite() and counts_nothing() before the host knows the sums: float32 [1] on
/// their device, 0 for yes and 1 for no. largest_1: largest_of_all() of the mean gradients. Of
/// ranks whose losses lie on the device.
at::Tensor found_inf(const at::Tensor& sums_V, const at::Tensor& largest_1, size_t num_counts = 0);

/// The totals that the summed numbers hold; bytes and seconds are left 0.
GlobalStepStats from_numbers(const at::Tensor& sums_V, size_t num_counts = 0);

}  // namespace lockstep::dist
