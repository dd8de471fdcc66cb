#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/params.h"
#include "dist/communicator.h"

namespace lockstep::dist {

/// Requests that any rank may raise and all ranks count: bit i of StepShare::votes. Their meaning
/// is the caller's.
constexpr int kNumVotes = 8;

/// What one rank brings to a step.
struct StepShare {
  double loss_sum = 0;      ///< over this rank's samples
  int64_t num_samples = 0;  ///< may be 0, but not on all ranks
  bool finite = true;       ///< false: this rank's loss is not finite, and the step must not count
  uint32_t votes = 0;       ///< bits 0 to kNumVotes - 1
};

/// What the step was over all ranks; equal on every rank, but for wait_s.
struct StepTotals {
  double loss_mean = 0;  ///< sum of losses / num_samples
  int64_t num_samples = 0;
  int64_t num_nonfinite_ranks = 0;         ///< ranks whose own loss was not finite
  bool gradients_finite = true;            ///< all items of the mean gradient
  std::array<int64_t, kNumVotes> votes{};  ///< ranks that raised each bit
  int64_t bytes_reduced = 0;               ///< payload that this rank handed over for this step
  double wait_s = 0;  ///< this rank's time inside finish() until all gradients were there

  /// Whether to update; one decision for all ranks.
  bool finite() const { return num_nonfinite_ranks == 0 && gradients_finite; }
};

/// Turns each rank's summed gradients into the mean over all samples of the step.
///
///   reducer.begin_backward();
///   loss_sum.backward();                    // of the SUM of this rank's losses, not their mean
///   const StepTotals totals = reducer.finish(share);
///   if (totals.finite()) optimizer.step();  // grads_E: sum over ranks / totals.num_samples
///
/// So an uneven or partial last batch is weighted exactly. Frozen buffers do not travel. Both calls
/// are collective: all ranks make them in turn. Between them backward may run on any thread, and
/// the reducer may read and write grads_E as soon as they are complete; now it does so in finish()
/// only.
///
/// Errors: Error(kUnavailable) from the communicator; Error(kBug) for calls out of turn or a step
/// without samples.
class GradientReducer {
 public:
  /// Both must outlive the reducer. The buffers are read anew at each step (contents, number), so
  /// they may be rebuilt between steps, equally on all ranks. They live on comm.device().
  GradientReducer(Communicator& comm, std::vector<FlatBuffer>& buffers);

  /// Before the backward pass whose end completes the gradients: of several micro-batches, the last
  /// one's.
  void begin_backward();

  StepTotals finish(const StepShare& share);

 private:
  void start_all(const at::Tensor& share_V);
  void wait_all();
  bool take_means(int64_t num_samples);

  Communicator& comm_;
  std::vector<FlatBuffer>& buffers_;
  std::vector<std::unique_ptr<Work>> under_way_;
  bool armed_ = false;
};

}  // namespace lockstep::dist
