#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/tensors/param_info.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "dist/collectives.h"
#include "dist/communicator.h"
#include "dist/reducer/bucket_reducer.h"
#include "dist/reducer/overlap.h"
#include "dist/reducer/step_stats.h"
#include "dist/sync_options.h"

namespace lockstep::dist {

/// Optional results of a step. Each costs time only if requested.
struct StepRequests {
  /// Computes GlobalStepStats::squared_grad_norm, for clipping by norm. Its bits are equal on all
  /// ranks and, on CPUs, for every division into buckets or shards, since it is exact over rows
  /// (dist/reducer/step_stats.h).
  bool squared_grad_norm = false;
  /// Lets updates begin before all means have arrived: finish() may return while the last buckets
  /// travel (GradientReducer::late_shards()). Equal on all ranks.
  bool by_bucket = false;
};

/// Turns each rank's summed gradients into the mean over all samples of the step, like DDP's
/// reducer.
///
///   reducer.prepare_for_backward();
///   reducer.follow_graph(loss_sum);         // optional
///   loss_sum.backward();                    // of the SUM of this rank's losses, not their mean
///   const GlobalStepStats totals = reducer.finish(share);
///   if (totals.finite()) optimizer.step();  // grads_E: sum over ranks / totals.num_samples
///
/// So an uneven or partial last batch is weighted exactly. Frozen buffers do not travel. All ranks
/// make all calls in the same order. prepare_for_backward() and finish() are collective. Between
/// the two there is at most one backward pass, on any threads. A second one that reaches the same
/// parameters throws Error(kConfig) out of backward(). Micro-batches before the last come before
/// prepare_for_backward().
///
/// Buckets (dist/reducer/buckets.h) are reduced one after another, always in the same order,
/// followed by the step statistics. With overlap, a communication thread starts a bucket as soon as
/// backward has completed it and all buckets before it. In finish() it also sends the rest, if it
/// has begun. Without overlap, finish() does everything. The messages are the same, so ranks may
/// differ in overlap, and no bit of a result depends on it.
///
/// Gradients that backward does not reach (an unused parameter; all, on a rank without samples)
/// keep their contents: zeros, or the sum of earlier micro-batches. They are reduced in finish(),
/// and rank 0 logs the names of such parameters once.
///
/// With by_bucket, if buckets overlap with backward and travel dense:
///
///   totals = reducer.finish(share);
///   if (totals.finite()) optimizer.step(rates, reducer.late_shards());  // waits for the last ones
///   reducer.finish_late(&totals);
///
/// The statistics then travel before the buckets that backward completes last. They include the
/// largest magnitude among these buckets' gradients. If its sum over the ranks is far from the
/// largest float, the sums of these gradients are finite too. So all ranks know that the step is
/// finite before these buckets travel. If the network is slower than the computation, the update of
/// all other buckets then costs no time. In other cases finish() waits for everything, and
/// late_shards() is empty. These cases: the step may not be finite, has damaged samples or lacks a
/// rank's share, or this rank does not overlap.
///
/// Kept positions: with a mask, gradients of dropped elements are +0 in the result, whether they
/// travelled or not, or undefined if set_kept() says so. sync.sparse_allreduce and sync.comm_dtype:
/// dist/reducer/bucket_reducer.h, dist/reducer/bucket_reduction.h. A single rank rounds nothing.
///
/// Sharded (options.shard_optimizer, N > 1; source: ZeRO stage 1, arXiv 1910.02054):
///
///   for (const ParamShard& region : reducer.local_shards()) ...  // what the optimizer updates
///   reducer.prepare_for_backward();  backward();  totals = reducer.finish(share);
///   if (totals.finite()) { optimizer.step();  reducer.gather_values(); }
///
/// Each rank gets the means of its own regions, bit for bit those of an unsharded reduction. Other
/// gradients are undefined after finish(). One more message, after the means, agrees on whether all
/// are finite. The statistics cannot include that, because they determine the divisor.
/// dist/reducer/buckets.h defines how a bucket is sharded; it depends on the buffers and N
/// alone, not on masks.
///
/// Shared (FlatBuffer::grads_by_rank; sync.share_weights): sharded in the same way. Each rank sums
/// its regions' gradients directly from the ranks' buffers, and updates the only copy of the
/// weights. Only the statistics and the finite flag travel, so nothing is packed or overlapped.
/// Call begin_changes() before any rank changes values, gather_values() after all have.
///
/// `auto` (overlap, packed) is decided by measurement in the first steps after a change of buffers
/// or masks (dist/reducer/bucket_reducer.h). Its messages follow those of the step and count in no
/// step's bytes.
///
/// Errors: finish() throws those of the communicator, from any thread, with the bucket's position
/// and first parameter at the end of the text. Error(kBug) for calls in the wrong order or a step
/// without samples. After an error only destruction is allowed. Destruction between
/// prepare_for_backward() and finish() is allowed too, for a rank whose backward pass has thrown.
/// It waits for a bucket whose reduction has begun. The next reduction of the other ranks then ends
/// as their communicator reports a lost rank.
class GradientReducer {
 public:
  /// `params` is the table that the buffers' slices index. Only the reducer uses `comm`. All must
  /// outlive the reducer. Before each step the buffers may be rebuilt, equally on all ranks, which
  /// drops the masks. They are on comm.device().
  GradientReducer(Communicator& comm, std::vector<FlatBuffer>& buffers, const ParamTable& params,
                  const SyncOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Sets the kept elements of a buffer (base/simd/bit_mask.h; the buffer's elements as items),
  /// copied; empty: all. Call it between steps, at each change of masks and after the buffers were
  /// rebuilt, with the same bits on all ranks. The next prepare_for_backward() compares them and
  /// throws Error(kDisagree).everywhere(). Ignored for a frozen buffer. kAnything requires that no
  /// one reads gradients of dropped elements after finish(), and that squared_grad_norm is not
  /// requested.
  void set_kept(size_t buffer, std::span<const uint8_t> bits, Dropped dropped = Dropped::kZero);

  /// True if each rank updates only its own shard: options.shard_optimizer or shared gradients, on
  /// several ranks.
  bool is_sharded();
  /// Returns the parts of the buffers that this rank updates, ascending, valid until the buffers
  /// are rebuilt. Unsharded: all trainable elements. A rank may own none.
  std::vector<ParamShard> local_shards();

  /// Begins a step. Call it before the forward or the backward pass that completes the gradients:
  /// of several micro-batches, the last one's. The requests apply to this step and are equal on all
  /// ranks.
  void prepare_for_backward(const StepRequests& requests = {});

  /// True if buckets may overlap with backward, at least in some steps; equal on all ranks.
  bool may_send_in_backward() const { return comm_.world_size() > 1 && may_overlap(); }
  /// Disables overlap with backward for the rest of the run, overriding sync.overlap. Call it on
  /// all ranks, before the first step.
  void send_after_backward() { is_overlap_off_ = true; }
  /// Disables the log message about parameters that backward did not reach, for a caller that knows
  /// more.
  void name_no_missing() { names_missing_ = false; }
  /// Enables (as at first) or disables notification of gradients during backward. Disabled, this
  /// rank sends all buckets in finish(). Call it between steps; ranks may differ.
  void follow_backward(bool follows);

  /// Announces the next backward pass, which must be that of `loss`. Optional. Call it after
  /// prepare_for_backward() and the forward pass. With overlap, buckets of a large gradient then
  /// leave while its layer still computes the rest (GradInPlace::on_written). The exception:
  /// something else in the graph of `loss` adds to that gradient. Without this call no bucket
  /// leaves before its gradients are complete.
  void follow_graph(const at::Tensor& loss);

  /// Enqueues an update that the device skips if found_inf_1 == 1 (Optimizer::step()).
  using EarlyUpdate = std::function<void(const at::Tensor& found_inf_1)>;
  /// Completes the reductions and returns the totals. `update`, if given, is called once the means
  /// and the finite flag are enqueued on a device. The host does not know them yet and waits for
  /// them after that. If `update` was not called, the caller updates as usual.
  GlobalStepStats finish(const LocalStepStats& share, const EarlyUpdate& update = {});
  /// Returns the shards that are still in transit after finish(). Wait for them on this thread,
  /// before finish_late().
  LateShards late_shards();
  /// Completes the totals after the last wait_for_next(). No effect if nothing was late.
  void finish_late(GlobalStepStats* totals);

  /// Gathers all values_E of the buffers on all ranks, bit for bit those of their owners, after
  /// each rank has updated its shard. Collective, blocks. Call it between finish() and the next
  /// prepare_for_backward(). Buckets that the next step would pack send only their kept values. The
  /// other values become +0 on ranks that do not own them; with enforced masks they already are
  /// (dist/reducer/bucket_reduction.h). Values are never rounded to sync.comm_dtype. No effect if
  /// unsharded.
  GatherTotals gather_values();

  /// Waits until all ranks have called it, if values are shared: after that no rank reads the old
  /// values. Otherwise returns at once. Collective, between steps or after finish().
  void begin_changes();

  /// Calls consolidate_state() (dist/collectives.h) over the reducer's communicator,
  /// between steps.
  void complete(const StateList& parts) { consolidate_state(comm_, parts); }

  /// Sums int64 numbers on the host over the ranks, in place. Collective, between finish() and the
  /// next prepare_for_backward(). Counts in no step's bytes.
  void sum(const at::Tensor& numbers);

  /// Waits until all collectives of this rank are done, on a device including those of
  /// gather_values(). Call it before the host reads gradients or values there, or a loss computed
  /// from them. Throws if a peer was lost or hung (Communicator::settle()).
  void settle() { comm_.settle(); }

  /// Choices found by measurement (dist/reducer/bucket_reducer.h), which a resumed run repeats.
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
  /// seconds: duration of the step so far, without the update.
  void conclude(double seconds, GlobalStepStats* totals);
  /// Results returned with the step statistics.
  struct Read {
    double compute_s = 0;                           ///< GlobalStepStats::compute_s
    double update_s = 0;                            ///< GlobalStepStats::update_s
    std::optional<bool> are_finite = std::nullopt;  ///< the means; nullopt: take_means() checks
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

  // of the current step
  bool is_armed_ = false;
  StepRequests requests_;
  bool bounds_late_ = false;  ///< the numbers precede the last buckets and include their bound
  size_t num_before_numbers_ = 0;
  std::optional<int64_t> late_divisor_;  ///< while buckets are late
  double early_s_ = 0;                   ///< of the step, until finish() returned with late buckets
  double late_wait_s_ = 0;               ///< waiting for late buckets
  Clock::time_point begin_, finish_start_;
  int64_t bytes_before_ = 0;

  // Declared last: hooks and thread are destroyed before the members they use.
  ReadyTracker ready_tracker_;
  std::unique_ptr<GradientHooks> hooks_;
  StepMessages messages_;
};

}  // namespace lockstep::dist
