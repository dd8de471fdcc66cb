#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/param_info.h"
#include "base/tensors/params.h"
#include "base/tensors/square_sums.h"
#include "dist/communicator.h"

/// Statistics of a step and their sums over the ranks, and gradient norms.
namespace lockstep::dist {

/// Number of votes: requests that any rank may raise and all ranks count. Bit i of
/// LocalStepStats::votes; the caller defines the meaning.
constexpr int kNumVotes = 8;

/// One rank's contribution to a step.
struct LocalStepStats {
  double loss_sum = 0;  ///< over this rank's samples
  /// Loss sum that a GPU still computes, 0-dimensional. loss_sum and `finite` then ignore it; the
  /// totals include it.
  at::Tensor loss_sum_on_device = {};
  int64_t num_samples = 0;  ///< may be 0, but not on all ranks
  int64_t num_skipped = 0;  ///< damaged samples that were replaced by others
  bool finite = true;       ///< false: this rank's loss is not finite; no rank updates
  uint32_t votes = 0;       ///< bits 0 to kNumVotes - 1
  double work_s = 0;        ///< seconds that this rank has worked on the step so far
  double late_s = 0;        ///< seconds that others waited for this rank in the step before
  /// Divisor of the summed gradients, equal on all ranks; nullopt: the samples of all ranks. 1 if
  /// losses were weighted by 1 / samples before backward, which saves a pass.
  std::optional<int64_t> gradient_divisor = std::nullopt;
  /// Samples of all ranks, equal on them, if a rank may omit its own. With fewer samples the step
  /// is not complete, and no rank updates.
  std::optional<int64_t> expected_samples = std::nullopt;
  bool has_left = false;  ///< this rank has omitted its samples
  /// Counts of the caller, 0 or more, equally many on all ranks; summed over the ranks. If one is
  /// not 0, no update begins before finish() returns.
  std::vector<double> counts = {};
};

/// Factor that defines a straggler: it works this many times longer on a step than the mean of the
/// other ranks.
constexpr double kStragglerRatio = 1.3;

/// Totals of a step over all ranks; equal on every rank, except for seconds.
struct GlobalStepStats {
  double loss_mean = 0;  ///< sum of losses / num_samples
  int64_t num_samples = 0;
  int64_t num_skipped = 0;
  bool is_complete = true;  ///< false: fewer samples than expected_samples
  /// Ranks with a non-finite loss. If hosts have not seen their losses: 1 for all together.
  int64_t num_nonfinite_ranks = 0;
  bool gradients_finite = true;  ///< all items of the mean gradient
  /// Squared norm of the mean gradient over all trainable parameters, if requested. NaN unless
  /// gradients_finite.
  std::optional<double> squared_grad_norm;
  std::array<int64_t, kNumVotes> votes{};  ///< ranks that raised each bit
  std::vector<double> counts = {};         ///< sums of LocalStepStats::counts

  int64_t bytes_reduced = 0;  ///< payload that this rank sent for this step
  int64_t bytes_saved = 0;    ///< by packing and narrower types, compared with dense gradients
  /// Bytes that a rank must send at least to reduce that payload: 2 (N - 1) / N of it, half as much
  /// for sharded gradients. bytes_sent / reduce_s is the bus bandwidth.
  int64_t bytes_sent = 0;
  double reduce_s = 0;                ///< this rank's time inside the reductions of gradients
  double overlapped_s = 0;            ///< the part of reduce_s hidden by backward or by the update
  std::vector<double> bucket_s = {};  ///< the parts of reduce_s, by bucket; empty if none travels
  double compute_s = 0;  ///< on a GPU: time in finish() until this rank's gradients are computed
  double update_s = 0;   ///< of the early update; in none of the other times
  /// Time from compute_s on until all gradients arrived; a communication thread works meanwhile.
  double wait_s = 0;
  double late_wait_s = 0;  ///< the part of wait_s after finish() (StepRequests::by_bucket)
  double work_s = 0;       ///< sum of work_s over all ranks
  double late_s = 0;       ///< sum of late_s over all ranks; usually one rank has some
  double own_work_s = 0;   ///< of this rank

  /// True if this rank is a straggler of the step; never with one rank.
  bool is_straggler(int num_ranks) const {
    return num_ranks > 1 && own_work_s > kStragglerRatio * mean_of_others_s(num_ranks);
  }
  /// Mean work_s of the other ranks.
  double mean_of_others_s(int num_ranks) const { return (work_s - own_work_s) / (num_ranks - 1); }

  /// True if the ranks must update; one decision for all.
  bool finite() const { return is_complete && num_nonfinite_ranks == 0 && gradients_finite; }
  /// True if all counts are 0.
  bool counts_nothing() const {
    return std::all_of(counts.begin(), counts.end(), [](double count) { return count == 0; });
  }
};

/// Totals of a gather of all values.
struct GatherTotals {
  int64_t bytes_gathered = 0;  ///< payload of all ranks together; each sends 1 / N of it to all
  int64_t bytes_saved = 0;     ///< by packing, compared with dense values
  double gather_s = 0;         ///< this rank's time
};

/// Encodes the statistics as numbers whose sums over ranks are the totals: float64 [V] on `device`.
at::Tensor encode_stats(const LocalStepStats& local, at::Device device);

/// Evaluates !(GlobalStepStats::finite() && counts_nothing()) on the device, before the host knows
/// the sums: float32 [1], 1 if the update must be skipped, else 0. largest_1: largest_of_all() of
/// the mean gradients. For ranks whose losses are on the device.
at::Tensor found_inf(const at::Tensor& sums_V, const at::Tensor& largest_1, size_t num_counts = 0);

/// Decodes the totals from these sums; bytes and seconds stay 0.
GlobalStepStats decode_stats(const at::Tensor& sums_V, size_t num_counts = 0);

// Sum of squares over the gradients of many parameters, in float64. On CPUs the bits do not depend
// on how gradients are sharded or cut into buckets (base/tensors/square_sums.h). On a device the
// unit is a region: the result is the same on all ranks, but another division rounds differently.

/// Adds the squares of the gradients within the regions, on the CPU or on comm.device(). There the
/// host waits once for all regions. Not collective.
void add_gradient_squares(Communicator& comm, const std::vector<FlatBuffer>& buffers,
                          const std::vector<ParamShard>& regions,
                          const std::vector<int64_t>& row_E_by_param, Superaccumulator* sum);

/// Returns the L2 norm of each region's gradients: float64 [R], on their device.
at::Tensor gradient_norms(const std::vector<FlatBuffer>& buffers,
                          const std::vector<ParamShard>& regions);

/// Sums over the ranks. Collective, one all_reduce of 544 bytes. The same message sums `flags`
/// (each 0 or more) over the ranks.
void join_over_ranks(Communicator& comm, Superaccumulator* sum, std::span<int64_t> flags);

}  // namespace lockstep::dist
