#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dist/reducer/step_stats.h"
#include "metrics/samples.h"
#include "optim/optimizer.h"

/// Results, tensors and time measurement of one step.
namespace lockstep::train {

/// Seconds since the last lap, by the steady clock.
class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> passed = now - std::exchange(last_, now);
    return passed.count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// Tensors of one iteration on this rank: B samples, B >= 0, without gradients. Outputs computed in
/// parts are concatenated on request.
class StepTensors {
 public:
  /// num_outputs: per sample; the shape of empty outputs until there were any.
  explicit StepTensors(int64_t num_outputs = 0) : num_outputs_(num_outputs) {}

  /// Begins an iteration with its batch.
  void begin(const at::Tensor& inputs_BX, const at::Tensor& targets_BY);
  /// Adds the outputs of the next samples of the batch; undefined if the network computes its own
  /// loss.
  void add_outputs(const at::Tensor& outputs_BO);

  const at::Tensor& inputs_BX() const { return inputs_BX_; }
  const at::Tensor& targets_BY() const { return targets_BY_; }
  /// Returns float32 outputs; undefined if the network computes its own loss and has samples.
  at::Tensor outputs_BO() const;

 private:
  int64_t num_outputs_;
  at::Tensor inputs_BX_, targets_BY_;
  std::vector<at::Tensor> outputs_;
  at::Tensor last_outputs_;  // of the last part, for its shape
};

/// Results of one update. Equal on every rank, except for values marked "rank".
struct StepReport {
  int64_t step = 0;  ///< updates done, this one included
  double epoch = 0;
  bool ends_epoch = false;
  double loss = 0;           ///< mean over all samples of the update; NaN if there were none
  bool has_loss = true;      ///< false: a local step of a rank without samples
  optim::StepRates rates{};  ///< learning rates etc. of this update, by parameter group
  double sparsity = 0;       ///< fraction of zeros among the prunable weights, 0 to 1
  int64_t global_samples = 0;
  int64_t rank_samples = 0;               ///< rank
  int64_t rank_skipped = 0;               ///< rank: damaged samples that were replaced by others
  int64_t rank_records = 0;               ///< rank: records read from files for its samples
  int64_t rank_record_bytes = 0;          ///< rank: their size in the files
  std::optional<int64_t> queued_batches;  ///< rank: batches read ahead; nullopt without threads
  bool is_straggler = false;              ///< rank: it worked much longer than the other ranks
  bool rank_skipped_update = false;       ///< rank: its update of this step was not finite; without
                                          ///< local steps equal to `skipped`
  dist::GatherTotals gathered;            ///< rank: gathered values, if the optimizer is sharded
  dist::GlobalStepStats totals;           ///< rank: bytes and seconds of the reduction
  int64_t num_mask_updates = 0;
  int64_t num_trainable = 0;            ///< elements of parameters that the update may change
  std::optional<double> gradient_norm;  ///< before clipping by norm, if that is on
  int64_t loss_scale = 1;               ///< of this update's backward
  bool scales_losses = false;           ///< true if the scale is dynamic
  /// True if the ranks have the same weights now. Between two averages (train/step/sync_modes.h)
  /// they do not; then loss, totals and `skipped` are this rank's, and the loop must do nothing. At
  /// an average the loss covers all samples since the last one, and `skipped` means that no rank
  /// updated.
  bool ranks_agree = true;
  /// True if a stop ended the wait for the step's data, or came before its masks
  /// (train/step/skipped_steps.h). No update was made, `step` updates are done, and wants_stop or
  /// must_end is set. All other fields are undefined.
  bool is_left_out = false;
  bool skipped = false;  ///< not finite on some rank: no rank updated
  /// True, once, if the network's own forward wrote a trained parameter. Ranks that had samples
  /// know its name.
  bool forward_wrote = false;
  std::string written_param = {};  ///< rank
  bool wants_save = false;         ///< rank 0's interval passed, or a save was requested
  bool wants_stop = false;         ///< a rank was asked to save and stop
  bool save_is_done = false;       ///< the save in progress has ended on every rank
  bool must_end = false;           ///< a rank was told to end
  bool may_evaluate = false;       ///< a save after this update may be evaluated
  bool wants_pause = false;        ///< wait before the next step
  bool has_changes = false;        ///< rank 0 has changes for all
  double duration_s = 0;           ///< rank
  metrics::PhaseSeconds phases;    ///< rank
};

}  // namespace lockstep::train
