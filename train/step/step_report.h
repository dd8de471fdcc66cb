#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dist/reducer/step_stats.h"
#include "metrics/samples.h"
#include "optim/optimizer.h"

namespace lockstep::train {

/// What one update did. Equal on every rank but for what is marked "rank".
struct StepReport {
  int64_t step = 0;  ///< updates done, this one included
  double epoch = 0;
  bool ends_epoch = false;
  double loss = 0;           ///< mean over all samples of the update; NaN if there were none
  bool has_loss = true;      ///< false: a rank's own step, between means, of none of its samples
  optim::StepRates rates{};  ///< of this update, by parameter group
  double sparsity = 0;       ///< zeros among the prunable weights, 0 to 1
  int64_t global_samples = 0;
  int64_t rank_samples = 0;               ///< rank
  int64_t rank_skipped = 0;               ///< rank: damaged samples, for which others stand
  int64_t rank_records = 0;               ///< rank: read from files for its samples
  int64_t rank_record_bytes = 0;          ///< rank: of them, as they lie there
  std::optional<int64_t> queued_batches;  ///< rank: read ahead and ready; nothing without threads
  bool is_straggler = false;              ///< rank: it worked much longer than the others
  bool rank_skipped_update = false;       ///< rank: its update of this step was not finite; without
                                          ///< local steps the same as `skipped`
  dist::GatherTotals gathered;            ///< rank: values, where the optimizer is divided
  dist::GlobalStepStats totals;           ///< rank: bytes and seconds of the reduction
  int64_t num_mask_updates = 0;
  int64_t num_trainable = 0;            ///< elements of parameters that the update may change
  std::optional<double> gradient_norm;  ///< before clipping by norm, if that is asked for
  int64_t loss_scale = 1;               ///< of this update's backward
  bool scales_losses = false;           ///< whether that changes
  /// Whether the ranks hold the same weights now. Between two means (train/sync/local_steps.h) they
  /// do not; then loss, totals and `skipped` are this rank's, and nothing is wanted of the loop. At
  /// a mean the loss is of all samples since the last one, and `skipped` says that no rank updated.
  bool ranks_agree = true;
  /// A stop has ended the wait for the step's data, or came before its masks
  /// (train/step/data_wait.h): nothing was updated, `step` updates are done, and wants_stop or
  /// must_end is set. Everything else of the report means nothing.
  bool is_left_out = false;
  bool skipped = false;  ///< not finite on some rank: nobody updated
  /// The network's own forward has written a trained parameter, told once. Its name is known on
  /// ranks that had samples.
  bool forward_wrote = false;
  std::string written_param = {};  ///< rank
  bool wants_save = false;         ///< rank 0's interval passed, or a save was asked for
  bool wants_stop = false;         ///< some rank was asked to save and stop
  bool save_is_done = false;       ///< on every rank the save under way has ended
  bool must_end = false;           ///< some rank was told to end
  bool may_evaluate = false;       ///< a save after this update may be evaluated
  bool wants_pause = false;        ///< hold before the next step
  bool has_changes = false;        ///< rank 0 has changes for all
  double duration_s = 0;           ///< rank
  metrics::PhaseSeconds phases;    ///< rank
};

}  // namespace lockstep::train
