#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/stop_request.h"
#include "train/loss/loss.h"
#include "train/step/audit.h"
#include "train/step/buffers.h"
#include "train/step/step_part.h"
#include "train/step/training_pass.h"

namespace lockstep::train {

/// Requests to this rank since the last step. All ranks decide together: votes are part of the
/// step's reduction, so every rank sees them after the same step.
struct Votes {
  bool save = false;       ///< an interval has passed (rank 0 votes), or a save was requested
  bool stop = false;       ///< save at the next step and stop
  bool save_done = false;  ///< the save in progress has ended on this rank
  bool end = false;        ///< end now, saving only if there is time
  bool evaluate = false;   ///< enough time since the last evaluation (rank 0 votes)
  bool pause = false;      ///< wait after this step (rank 0 votes)
  bool change = false;     ///< rank 0 has changes for all ranks
};

/// Bits of dist::LocalStepStats::votes.
enum VoteBit {
  kSaveBit,
  kStopBit,
  kEndBit,
  kSaveDoneBit,
  kEvaluateBit,
  kNonFiniteBit,
  kPauseBit,
  kChangeBit
};
static_assert(kChangeBit < dist::kNumVotes);

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
  double late_s = 0;  ///< seconds that the other ranks waited for a straggler, in the step before
  bool rank_skipped_update = false;  ///< rank: its update of this step was not finite; without
                                     ///< local steps equal to `skipped`
  dist::GatherTotals gathered;       ///< rank: gathered values, if the optimizer is sharded
  dist::GlobalStepStats totals;      ///< rank: bytes and seconds of the reduction
  int64_t num_mask_updates = 0;
  int64_t num_trainable = 0;            ///< elements of parameters that the update may change
  std::optional<double> gradient_norm;  ///< before clipping by norm, if that is on
  int64_t loss_scale = 1;               ///< of this update's backward
  bool scales_losses = false;           ///< true if the scale is dynamic
  /// True if the ranks have the same weights now. Between two averages (train/step/step_modes.h)
  /// they do not; then loss, totals and `skipped` are this rank's, and the loop must do nothing. At
  /// an average the loss covers all samples since the last one. `skipped` is then true if no rank
  /// has updated since.
  bool ranks_agree = true;
  /// True if a stop ended the wait for the step's data, or came before its masks (DataWait). No
  /// update was made, `step` updates are done, and wants_stop or must_end is set. All other fields
  /// are undefined.
  bool is_left_out = false;
  bool skipped = false;  ///< not finite on some rank: no rank updated
  /// True, once, if the network's own forward wrote a trained parameter. Ranks that had samples
  /// know its name.
  bool forward_wrote = false;
  std::string written_param = {};  ///< rank
  bool wants_save = false;         ///< rank 0's interval passed, or a save was requested
  bool wants_stop = false;         ///< a rank was asked to save and stop
  bool save_is_done = false;       ///< the save in progress has ended on every rank
  bool must_end = false;           ///< a stop without time to save was requested
  bool may_evaluate = false;       ///< a save after this update may be evaluated
  bool wants_pause = false;        ///< wait before the next step
  bool has_changes = false;        ///< rank 0 has changes for all
  double duration_s = 0;           ///< rank
  metrics::PhaseSeconds phases;    ///< rank
};

/// Waits for a step's data. A stop request ends the wait early.
///
/// Ranks that have their data already wait in the step's reduction. So a rank without data joins
/// them without its samples. The step's sample count is then too small, and so all ranks know that
/// the step is skipped (GlobalStepStats::is_complete). Recipe actions at a step would change the
/// state. So before them the ranks ask each other.
///
/// Without loader threads the training thread reads the samples itself, and sees a stop only
/// afterwards. That is so for samples in memory on CPUs, and for a Python data set without workers.
class DataWait final : public StepPart {
 public:
  /// Data usually arrive within parts.data_patience_s, so an early stop does not skip a step that
  /// is about to begin.
  explicit DataWait(const TrainerParts& parts) : parts_(parts) {}

  /// Returns the next batch, or one without this rank's samples.
  data::Batch next_batch();
  /// True on all ranks if some rank has no samples or, before long work (`is_long`), has received a
  /// stop request. Then sets the report's stop flags. Collective.
  bool stops_here(bool is_long, StepReport* report) const;
  /// False if waits have no limit.
  bool can_leave() const { return parts_.stop != nullptr && !parts_.mode.is_local(); }
  /// True if this rank has left out its samples of the step.
  bool has_left() const { return has_left_; }
  /// Rewinds the loader if the step was left out.
  void end_step(StepEnd end, int64_t) override {
    if (end == StepEnd::kLeftOut) parts_.loader.go_back_to(before_);
  }

 private:
  bool is_asked_to_stop() const { return parts_.stop->stop_asked() || parts_.stop->end_asked(); }

  const TrainerParts& parts_;
  data::SamplerPosition before_;
  bool has_left_ = false;
};

/// Counts faults in steps and ends the run if there are too many.
class StepLimits {
 public:
  /// max_nonfinite: number of skipped updates in a row that ends the run. max_damaged: most damaged
  /// samples of an epoch, over all ranks.
  StepLimits(int64_t max_nonfinite, int64_t max_damaged)
      : max_nonfinite_(max_nonfinite), max_damaged_(max_damaged) {}

  /// Resets the count of damaged samples at the first step of an epoch.
  void begin_step(const StepClock& clock);
  /// Adds damaged samples found on all ranks. Throws Error(kBadData).everywhere() above the limit.
  void count_damaged_samples(int64_t num_samples, const StepClock& clock);

  /// Counts an update. counted: it was applied. is_excused: it was not, but the cause was handled.
  void add_update(bool counted, bool is_excused = false);
  bool too_many_nonfinite() const { return num_nonfinite_in_a_row_ >= max_nonfinite_; }
  /// Throws Error(kNonFinite).everywhere() if `too_many`, which is equal on all ranks.
  void require_finite(bool too_many, const StepClock& clock) const;

 private:
  const int64_t max_nonfinite_, max_damaged_;
  int64_t num_nonfinite_in_a_row_ = 0;
  int64_t num_damaged_of_epoch_ = 0;  // in this process
};

/// Limits messages about updates skipped because something was not finite. The first is logged at
/// once, later ones at most once a minute, with their number.
class SkippedUpdates {
 public:
  /// clock_s: seconds of a steady clock; empty: the system's.
  explicit SkippedUpdates(std::function<double()> clock_s = {});

  /// Counts a skipped update. `step`: its number, from 1. `why`: such as "the loss of rank 1 is
  /// not finite". Returns the text to log; nullopt within a minute after the last one.
  std::optional<std::string> add(int64_t step, const std::string& why);

 private:
  std::function<double()> clock_s_;
  int64_t num_skipped_ = 0;
  std::optional<double> logged_at_s_;
};

/// Update of the weights and of their moving average. On GPUs it may be enqueued before the host
/// knows whether it is finite. The kernel then skips it on the device if not, and end_step()
/// reverts its count.
class WeightUpdate final : public StepPart {
 public:
  explicit WeightUpdate(const TrainerParts& parts) : parts_(parts) {}

  void enqueue(const optim::StepRates& rates, const at::Tensor& found_inf_1) {
    parts_.optimizer.step(rates, {}, found_inf_1);
    is_enqueued_ = true;
  }
  bool is_enqueued() const { return is_enqueued_; }
  /// Reverts the count of an enqueued update that the device has skipped.
  void revert() {
    if (std::exchange(is_enqueued_, false)) parts_.optimizer.uncount();
  }

  void on_recipe_change(const recal::AppliedActions& due) override;
  void begin_step() override { is_enqueued_ = false; }
  void end_step(StepEnd end, int64_t) override {
    end == StepEnd::kUpdated ? parts_.ema.update() : revert();
  }

 private:
  const TrainerParts& parts_;
  bool is_enqueued_ = false;
};

/// The training step. Every rank calls step() equally often; one caller at a time.
///
///   next batch -> what is due by the recipe -> forward, loss, backward by micro-batch -> reduce ->
///   clip -> update -> masks -> moving statistics -> EMA
///
/// No rank decides alone. The loss, the decision on non-finite values and the votes come from the
/// same reduction as the gradients. The loss scale follows from that decision. With local steps
/// (train/step/step_modes.h), votes and limits wait for the next average, and a rank whose own
/// update is not finite skips it alone.
///
/// State that a step changes belongs to a StepPart. All parts are called on every way in which a
/// step can end, so no way can forget one.
class Trainer {
 public:
  /// Collective if train.batch_norm is sync (train/step/buffers.h).
  Trainer(const TrainerParts& parts, const TrainOptions& options);

  /// Function that returns this rank's votes. Called once per step, after its gradients.
  using Ask = std::function<Votes()>;

  /// Runs one update. Throws Error(kNonFinite).everywhere() after too many skipped updates in a
  /// row, Error(kBadData).everywhere() after too many damaged samples. Throws Error(kDisagree) if
  /// new masks differ, Error(kUnavailable) if a peer is gone.
  StepReport step_asking(const Ask& ask);
  StepReport step(const Votes& votes) {
    return step_asking([&votes] { return votes; });
  }

  /// Takes back the step that an error of other ranks has ended, so that it can be made again from
  /// the same state. Without such a step no effect. Sends nothing. Returns false if that is not
  /// possible, since the weights have begun to change. Masks that the step began with stay: to
  /// apply the recipe's actions again changes nothing.
  bool undo_step();

  /// Applies the recipe's closing actions after the last step. Collective, like step().
  recal::AppliedActions close();

 private:
  /// A step under way.
  struct Step {
    data::Batch batch;
    StepReport report;
    LossSum loss;              ///< of this rank's samples
    double counted_share = 1;  ///< of targets that count in the loss, over all peers; NaN if none.
                               ///< Per sample if samples have different numbers of targets
    double loss_divisor = 1;   ///< of `loss`, before the reduction
  };

  /// Begins the step, with the recipe's changes before it. Returns false if a stop comes first; the
  /// step is left out then.
  bool begin(Step* step);
  bool stops_before_recipe(StepReport* report);
  void begin_report(Step* step);
  /// Runs forward and backward on this rank's samples.
  void compute_gradients(Step* step);
  double counted_share(const data::Batch& batch);
  /// True if gradients are clipped, which needs all of them before the first update.
  bool clips() const {
    return parts_.optimizer_options.clip.norm || parts_.optimizer_options.clip.value;
  }
  dist::GradientReducer::EarlyUpdate early_update(const optim::StepRates& rates);
  /// Waits for the mean gradients of all ranks and the step statistics.
  void reduce_gradients(Step* step, const Ask& ask);
  double late_s_after(const StepReport& report) const;
  dist::LocalStepStats contribution(const Step& step, const Votes& votes, double work_s);
  /// Decides whether the update counts. Throws after too many damaged samples or skipped updates.
  void check_finite(Step* step);
  /// Logs a skipped update. Collective over the peers.
  void log_skipped(const Step& step);
  /// Keeps values and slots of parameters that no rank's backward reached. Collective.
  void exclude_unreached(const dist::GlobalStepStats& totals);
  void update_weights(StepReport* report);
  /// Checks and updates, advances the clock, and completes the step in its mode.
  void complete(Step* step);
  /// Ends the step in all parts. Undoes one that does not count, unless it never began
  /// (stops_before_recipe()).
  void end_parts(StepEnd end, StepReport* report);
  /// Makes all exchanges for the end of the step, before the weights change.
  void agree_parts(StepEnd end, const StepReport& report);
  void complete_report(StepReport* report) const;
  /// Prepares a change of weights, moments or masks, or a look at them from the host. Waits until
  /// they are complete and no save still copies them, for shared weights on all ranks (collective).
  void before_changes() {
    parts_.reducer.settle();
    if (parts_.before_changes) parts_.before_changes();
    parts_.reducer.begin_changes();
  }

  const TrainerParts parts_;
  RecipePart recipe_part_;
  BatchStatistics statistics_;
  MovedBuffers moved_buffers_;
  WeightUpdate update_;
  ParamsWatch watch_;
  TrainingPass pass_;
  Audit audit_;
  DataWait data_wait_;
  std::vector<StepPart*> step_parts_;  ///< the parts above, then TrainerParts::more_parts
  StepLimits limits_;
  SkippedUpdates skipped_updates_;
  /// Progress of the step; kNone between steps.
  enum class Progress { kNone, kHasData, kBegun, kUpdates } progress_ = Progress::kNone;
  size_t num_begun_ = 0;  ///< number of parts that have begun the step
  LossScale scale_before_;
  double late_s_ = 0;       ///< LocalStepStats::late_s of the next step
  double last_work_s_ = 0;  ///< of the previous step: on a GPU that of this step is known too late
};

}  // namespace lockstep::train
