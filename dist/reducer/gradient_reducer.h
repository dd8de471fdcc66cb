#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/tensors/param_shard.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "dist/communicator.h"
#include "dist/reducer/autotuner.h"
#include "dist/reducer/bucket_reducer.h"
#include "dist/reducer/gradient_hooks.h"
#include "dist/reducer/ready_tracker.h"
#include "dist/reducer/step_messages.h"
#include "dist/reducer/step_stats.h"
#include "dist/shard/consolidate_state.h"
#include "dist/sync_options.h"

namespace lockstep::dist {

/// Optional results of a step, which cost time only where they are asked for.
struct StepRequests {
  /// GlobalStepStats::squared_grad_norm, for clipping by norm: equal bits on all ranks and, on
  /// CPUs, for every division into buckets or among ranks, since it is exact over rows
  /// (dist/bucket/squared_grad_norm.h).
  bool squared_grad_norm = false;
  /// Updates may begin before all means are there: finish() may return while the last buckets
  /// travel (GradientReducer::late_shards()). Equal on all ranks.
  bool by_bucket = false;
};

/// Turns each rank's summed gradients into the mean over all samples of the step.
///
///   reducer.prepare_for_backward();
///   reducer.follow_graph(loss_sum);         // optional
///   loss_sum.backward();                    // of the SUM of this rank's losses, not their mean
///   const GlobalStepStats totals = reducer.finish(share);
///   if (totals.finite()) optimizer.step();  // grads_E: sum over ranks / totals.num_samples
///
/// So an uneven or partial last batch is weighted exactly. Frozen buffers do not travel. All ranks
/// make all calls in turn; prepare_for_backward() and finish() are collective. Between the two
/// there is at most one backward pass, on any threads; a second one that reaches the same
/// parameters is a bug and throws Error(kBug) out of backward(). Micro-batches before the last come
/// before prepare_for_backward().
///
/// Buckets (dist/bucket/buckets.h) are reduced one after another, always in the same order, and
/// then the step's numbers. With overlap a communication thread begins with a bucket as soon as
/// backward has completed it and those before it; in finish() it sends the rest too, if it has
/// begun. Without, all is done in finish(). The messages are the same, so ranks need not overlap
/// alike, and no bit of a result depends on it. What backward does not reach (an unused parameter;
/// all, on a rank without samples) holds the zeros, or the earlier micro-batches' gradients, that
/// stood there before; it is reduced in finish(), and rank 0 names such parameters once.
///
/// Asked for by_bucket, where buckets travel beside backward as they are:
///
///   totals = reducer.finish(share);
///   if (totals.finite()) optimizer.step(rates, reducer.late_shards());  // waits for the last ones
///   reducer.finish_late(&totals);
///
/// The step's numbers travel before the buckets that backward completes last, with the largest
/// magnitude among their gradients: if the sum of it over the ranks is far from the largest float,
/// the sums of these gradients are finite too, and the verdict is known before they travel. On a
/// wire that is slower than the computing the update of all others then costs no time. If the
/// verdict is not that good (not finite, damaged samples, a rank without its share), or this rank
/// sends nothing beside backward, finish() waits for all, and late_shards() is empty.
///
/// Kept positions: where a mask is set, gradients of dropped elements are +0 in the result, whether
/// they travelled or not, or anything, where set_kept() says so. sync.sparse_allreduce and
/// sync.comm_dtype: dist/reducer/packing_choice.h, dist/reducer/bucket_reduction.h. One rank alone
/// rounds nothing.
///
/// Divided among ranks (options.shard_optimizer, N > 1; source: ZeRO stage 1, arXiv 1910.02054):
///
///   for (const ParamShard& region : reducer.local_shards()) ...    // what the optimizer updates,
///   and keeps reducer.prepare_for_backward();  backward();  totals = reducer.finish(share); if
///   (totals.finite()) { optimizer.step();  reducer.gather_values(); }
///
/// each rank gets the means of its own regions, bit for bit those of an undivided reduction, and
/// the rest of the gradients is overwritten and means nothing after finish(). Whether all are
/// finite is agreed in one more message after the means are there: the step's numbers cannot carry
/// it, as they tell by what to divide. dist/shard/bucket_shards.h says how a bucket is divided:
/// depending on the buffers and N alone, not on masks.
///
/// Shared (FlatBuffer::grads_by_rank; sync.share_weights): divided in the same way, but each rank
/// adds up its regions' gradients from where the ranks wrote them, and what it updates is the one
/// copy of all. Nothing but the step's numbers and the verdict travels, so nothing is packed or
/// overlapped: begin_changes() before any rank changes values, gather_values() after all have.
///
/// `auto` (overlap, packed) is found out by time in the first steps after a change of buffers or
/// masks (dist/reducer/autotuner.h), by messages after the step's, which no step's bytes count.
///
/// Errors: those of the communicator, on whichever thread it came up, out of
/// finish(), with the bucket's place and first parameter at the end of the text; Error(kBug) for
/// calls out of turn or a step without samples. After an error only destruction is allowed.
/// Destruction between prepare_for_backward() and finish() is allowed too, for a rank whose
/// backward pass has thrown: it waits for the bucket whose reduction has begun. The other ranks'
/// next reduction then ends as their communicator says of a lost rank.
class GradientReducer {
 public:
  /// `params` is the table that the buffers' slices index; `comm` is used by the reducer alone. All
  /// must outlive the reducer. Before each step the buffers may be rebuilt, equally on all ranks;
  /// masks are gone then. They live on comm.device().
  GradientReducer(Communicator& comm, std::vector<FlatBuffer>& buffers, const ParamTable& params,
                  const SyncOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Which elements of a buffer are kept (base/bits/bit_mask.h; its elements as items), copied;
  /// empty: all. Between steps, at each change of masks and after the buffers were rebuilt, with
  /// the same bits on all ranks: the next prepare_for_backward() compares them and throws
  /// Error(kDisagree).everywhere(). Ignored for a frozen buffer. kAnything: nobody reads the
  /// gradients of dropped elements after finish(), and squared_grad_norm is not asked for.
  void set_kept(size_t buffer, std::span<const uint8_t> bits, Dropped dropped = Dropped::kZero);

  /// Whether each rank updates its own part only: options.shard_optimizer or shared gradients, on
  /// several ranks.
  bool is_sharded();
  /// The parts of the buffers that this rank updates, ascending, until the buffers are rebuilt: all
  /// that is not frozen, unless divided. A rank may own none.
  std::vector<ParamShard> local_shards();

  /// Before the forward or the backward pass whose end completes the gradients: of several
  /// micro-batches, the last one's. The wishes are for this step and equal on all ranks.
  void prepare_for_backward(const StepRequests& requests = {});

  /// Whether buckets may travel beside backward, in some steps at least; equal on all ranks.
  bool may_send_in_backward() const { return comm_.world_size() > 1 && may_overlap(); }
  /// From now on nothing does, whatever sync.overlap says. On all ranks, before the first step.
  void send_after_backward() { is_overlap_off_ = true; }
  /// From now on rank 0 does not name what backward did not reach: the caller knows more.
  void name_no_missing() { names_missing_ = false; }
  /// False: this rank is not told in backward any more which gradients are there, and sends all in
  /// finish(). True, as at first: it is. Between steps, each rank for itself.
  void follow_backward(bool follows);

  /// After prepare_for_backward() and the forward pass; the next backward pass must be that of
  /// `loss`. With overlap, buckets of a large gradient then leave while its layer still computes
  /// the rest of it (GradInPlace::on_written), unless something else in the graph of `loss` adds to
  /// it. Without this call none leaves before its gradient is whole.
  void follow_graph(const at::Tensor& loss);

  /// Puts an update on the caller's stream that the device leaves out where found_inf_1 is 1
  /// (Optimizer::step()).
  using EarlyUpdate = std::function<void(const at::Tensor& found_inf_1)>;
  /// `update`, if given, is called where a device will have the means, and the verdict, before the
  /// host knows them: the host then waits beside it. Not called: update as ever.
  GlobalStepStats finish(const LocalStepStats& share, const EarlyUpdate& update = {});
  /// After finish(): what is still on its way, to be waited for on this thread until finish_late().
  LateShards late_shards();
  /// After the last wait_for_next(): the totals are complete. Nothing to do where nothing was late.
  void finish_late(GlobalStepStats* totals);

  /// After each rank has updated what it owns, in values_E of the buffers: all values on all ranks,
  /// the bits of their owners. Collective, blocks; between finish() and the next
  /// prepare_for_backward(). Buckets that packing would send packed in the next step have only
  /// their kept values sent; the others become +0 where another rank owns them, which they are
  /// already where masks are enforced (dist/shard/value_gather.h). Values are never rounded to
  /// sync.comm_dtype. Undivided: nothing is done.
  GatherTotals gather_values();

  /// Where values are shared, returns once all ranks have called it: none of them reads the values
  /// of before any more. Else at once. Collective, between steps or after finish().
  void begin_changes();

  /// consolidate_state() (dist/shard/consolidate_state.h) over the reducer's communicator, between
  /// steps.
  void complete(const StateList& parts) { consolidate_state(comm_, parts); }

  /// Sums over the ranks of int64 numbers on the host, in place; collective, between finish() and
  /// the next prepare_for_backward(). In a message that no step's bytes count.
  void sum(const at::Tensor& numbers);

  /// Returns once all that this rank has begun with its peers is done, the values of
  /// gather_values() on a device too: before the host reads gradients or values there, or a loss
  /// computed from them. Throws if a peer was lost or hung (Communicator::settle()).
  void settle() { comm_.settle(); }

  /// Choices found by time (dist/reducer/packing_choice.h), which a resumed run repeats.
  StateList state() { return buckets_.state(); }

 private:
  using Clock = BucketReducer::Clock;

  void follow_buffers();
  void set_hooks();
  bool may_overlap() const;
  bool overlaps_now() const;
  void on_gradient(int64_t param);
  void on_written(int64_t param, int64_t num_elements);
  void release_complete();
  void listen_to(const std::vector<int64_t>& params);
  at::Tensor numbers_of(const LocalStepStats& share) const;
  GlobalStepStats totals_of(const LocalStepStats& share) const;
  bool may_update_early(const LocalStepStats& share) const;
  void wait_for_late();
  /// seconds: of the step so far, without the update.
  void conclude(double seconds, GlobalStepStats* totals);
  /// What came with the step's numbers.
  struct Read {
    double compute_s = 0;                           ///< GlobalStepStats::compute_s
    double update_s = 0;                            ///< GlobalStepStats::update_s
    std::optional<bool> are_finite = std::nullopt;  ///< the means; nothing: take_means() looks
  };
  Read read_sums(const LocalStepStats& share, const std::shared_ptr<StreamMark>& computed,
                 const EarlyUpdate& update);
  void take_means(int64_t divisor, const Read& read, GlobalStepStats* totals);
  void name_missing();
  void learn(double seconds);
  bool is_under_way() const { return is_armed_ || late_divisor_; }

  Communicator& comm_;
  std::vector<FlatBuffer>& buffers_;
  const ParamTable& params_;
  const SyncOptions options_;
  BucketReducer buckets_;
  Autotuner overlap_trial_;
  bool overlap_is_faster_ = false;
  bool follows_backward_ = true;
  bool is_overlap_off_ = false;
  bool names_missing_ = true;
  std::vector<bool> was_named_;  ///< by parameter

  // of the step under way
  bool is_armed_ = false;
  StepRequests requests_;
  bool bounds_late_ = false;  ///< the numbers travel before the last buckets, with their bound
  size_t num_before_numbers_ = 0;
  std::optional<int64_t> late_divisor_;  ///< while buckets are late
  double early_s_ = 0;                   ///< of the step, until finish() left them
  double late_wait_s_ = 0;               ///< for them
  Clock::time_point begin_, finish_start_;
  int64_t bytes_before_ = 0;

  // Of all that uses the rest, the last: hooks and thread end first.
  ReadyTracker ready_tracker_;
  std::unique_ptr<GradientHooks> hooks_;
  StepMessages messages_;
};

}  // namespace lockstep::dist
