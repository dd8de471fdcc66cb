#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/tensors/device_backend.h"
#include "base/tensors/param_info.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "dist/communicator.h"
#include "dist/reducer/bucket_reduction.h"
#include "dist/reducer/buckets.h"
#include "dist/reducer/overlap.h"
#include "dist/reducer/step_stats.h"
#include "dist/reduction_modes.h"

namespace lockstep::dist {

/// Optional results of a step. Each costs time only if requested.
struct StepRequests {
  /// Computes GlobalStepStats::squared_grad_norm, for clipping by norm. Its bits are equal on all
  /// ranks and, on CPUs, for every division into buckets or shards, since it is exact over rows
  /// (dist/reducer/step_stats.h).
  bool squared_grad_norm = false;
  /// Lets updates begin before all means have arrived: finish() may return while the last buckets
  /// travel (GradientReducer::pending_shards()). Equal on all ranks.
  bool by_bucket = false;
};

/// Turns each rank's summed gradients into the mean over all samples of the step, like DDP's
/// reducer.
///
///   reducer.prepare_for_backward();
///   reducer.follow_graph(loss_sum);         // optional
///   loss_sum.backward();                    // of the SUM of this rank's losses, not their mean
///   const GlobalStepStats totals = reducer.finish(local);
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
/// backward has completed it and all buckets before it. Without overlap, finish() does everything.
/// The messages are the same, so ranks may differ in overlap, and no bit depends on it. Modes:
/// dist/reduction_modes.h. Messages of measurements follow those of the step and count in no step's
/// bytes.
///
/// Gradients that backward does not reach (an unused parameter; all, on a rank without samples)
/// keep their contents: zeros, or the sum of earlier micro-batches. They are reduced in finish(),
/// and rank 0 logs the names of such parameters once. With a mask, gradients of dropped elements
/// are +0 in the result, whether they travelled or not, or undefined if set_kept() says so.
///
/// With by_bucket, if buckets overlap with backward (ReductionModes::may_be_late):
///
///   totals = reducer.finish(local);
///   // Updates the last buckets' shards too, and waits for each of them.
///   if (totals.finite()) optimizer.step(rates, reducer.pending_shards());
///   reducer.finish_late(&totals);
///
/// The statistics then travel before the buckets that backward completes last. They include the
/// largest magnitude among these buckets' gradients. If its sum over the ranks is far from the
/// largest float, the sums of these gradients are finite too. So all other buckets are updated
/// while these travel. finish() waits for everything if the step may not be finite, has damaged
/// samples or lacks a rank's samples. It also does if this rank does not overlap.
///
/// Sharded (options.shard_optimizer, N > 1; source: ZeRO stage 1, arXiv 1910.02054):
///
///   for (const ParamShard& region : reducer.local_shards()) ...  // what the optimizer updates
///   reducer.prepare_for_backward();  backward();  totals = reducer.finish(local);
///   if (totals.finite()) { optimizer.step();  reducer.gather_values(); }
///
/// Each rank gets the means of its own regions, bit for bit those of an unsharded reduction. Other
/// gradients are undefined after finish(). One more message agrees on whether all means are finite.
///
/// Shared (FlatBuffer::grads_by_rank; sync.share_weights): sharded in the same way. Each rank sums
/// its regions' gradients directly from the ranks' buffers, and updates the only copy of the
/// weights. Only the statistics and the finite flag travel. Call begin_changes() before any rank
/// changes values, gather_values() after all have.
///
/// Errors: finish() throws those of the communicator, from any thread, with the bucket's position
/// and first parameter at the end of the text. Error(kBug) for calls in the wrong order or a step
/// without samples. After an error only destruction is allowed. A rank whose backward pass has
/// thrown may destroy the reducer before finish(). That waits for a bucket whose reduction has
/// begun; the other ranks' communicator then reports a lost rank.
class GradientReducer {
 public:
  /// `params` is the table that the buffers' slices index. Only the reducer uses `comm`, except for
  /// SharedFlatMemory, between steps. All must outlive the reducer. Before each step the buffers
  /// may be rebuilt, equally on all ranks, which drops the masks. They are on comm.device().
  GradientReducer(Communicator& comm, std::vector<FlatBuffer>& buffers, const ParamTable& params,
                  const SyncOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Sets the kept elements of a buffer (base/simd/bit_mask.h; the buffer's elements as items),
  /// copied; empty: all. Call it between steps, at each change of masks and after the buffers were
  /// rebuilt, with the same bits on all ranks. The next prepare_for_backward() compares them and
  /// throws Error(kDisagree).everywhere(). Ignored for a frozen buffer. kUndefined requires that no
  /// one reads gradients of dropped elements after finish(), and that squared_grad_norm is not
  /// requested.
  void set_kept(size_t buffer, std::span<const uint8_t> bits, Dropped dropped = Dropped::kZero);

  /// True if each rank updates only its own shard: options.shard_optimizer or shared gradients, on
  /// several ranks.
  bool is_sharded();
  /// Returns the parts of the buffers that this rank updates, ascending: unsharded, all trainable
  /// elements. Valid until the buffers are rebuilt.
  std::vector<ParamShard> local_shards();

  /// Begins a step. Call it before the forward or the backward pass that completes the gradients:
  /// of several micro-batches, the last one's. The requests apply to this step and are equal on all
  /// ranks.
  void prepare_for_backward(const StepRequests& requests = {});

  /// True if buckets may overlap with backward, at least in some steps; equal on all ranks.
  bool may_send_in_backward() const { return comm_.world_size() > 1 && modes_.may_overlap; }
  /// Disables overlap with backward for the rest of the run, overriding sync.overlap. Call it on
  /// all ranks, before the first step.
  void send_after_backward();
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
  /// and the finite flag are enqueued on a device, before the host waits for them. If it was not
  /// called, the caller updates as usual.
  GlobalStepStats finish(const LocalStepStats& local, const EarlyUpdate& update = {});
  /// Returns the shards that are still in transit after finish(). Wait for them on this thread,
  /// before finish_late().
  PendingShards pending_shards();
  /// Completes the totals after the last wait_for_next(). No effect if nothing was late.
  void finish_late(GlobalStepStats* totals);

  /// Gathers all values_E of the buffers on all ranks, bit for bit those of their owners, after
  /// each rank has updated its shard. Collective, blocks. Call it between finish() and the next
  /// prepare_for_backward(). Buckets that the next step would pack send only their kept values
  /// (ReduceScatterBucket::gather()). Values are never rounded. No effect if unsharded.
  GatherTotals gather_values();

  /// Waits until all ranks have called it, if values are shared: after that no rank reads the old
  /// values. Otherwise returns at once. Collective, between steps or after finish().
  void begin_changes();

  /// Calls consolidate_state() over the reducer's communicator, between steps.
  void complete(const StateList& parts) { consolidate_state(comm_, parts); }

  /// Sums int64 numbers on the host over the ranks, in place. Collective, between finish() and the
  /// next prepare_for_backward(). Counts in no step's bytes.
  void sum(const at::Tensor& numbers);

  /// Calls Communicator::settle(), before the host reads gradients, values or a loss computed from
  /// them on a device.
  void settle() { comm_.settle(); }

  /// Choices found by measurement (PackingChoice), which a resumed run repeats.
  StateList state() { return packing_.state(); }

 private:
  using Clock = MessageBucket::Clock;

  // Layout.
  void rebuild_buckets();
  void make_bucket(size_t bucket);
  int64_t gather_bucket(size_t index);
  void update_modes();
  void agree_on_masks();
  uint64_t fingerprint() const;

  // Backward.
  void set_hooks();
  void listen_to(const std::vector<int64_t>& params);
  void autograd_hook(int64_t param);
  void on_written(int64_t param, int64_t num_elements);
  void release_complete();
  void mark_complete(size_t num_buckets);

  // What changes from step to step (the rest: modes_).
  bool overlaps_now() const;
  bool stats_come_first() const;
  bool may_update_early(const LocalStepStats& local) const;

  // Messages of one step, in one order on all ranks: the buckets, and the step statistics
  // after num_before_stats_ of them (docs/decisions/0013-one-order-of-messages.md).
  void send_rest(const LocalStepStats& local);
  bool follow_thread(const LocalStepStats& local);
  void run_job(size_t job);
  /// Returns the bucket of a job. Every job except that of the statistics has one.
  size_t bucket_of(size_t job) const { return job < num_before_stats_ ? job : job - 1; }
  void reduce_bucket(size_t bucket);
  void wait_for_reductions();
  void wait_for_late();
  /// Runs a part; its errors get the operation and the bucket appended.
  template <typename Part>
  void with_bucket(const char* doing, size_t bucket, const Part& part) const;

  /// Results returned with the step statistics.
  struct Read {
    double compute_s = 0;            ///< GlobalStepStats::compute_s
    double update_s = 0;             ///< GlobalStepStats::update_s
    std::optional<bool> are_finite;  ///< the means; nullopt: finalize_buckets() checks them
  };
  at::Tensor stats_message(const LocalStepStats& local) const;
  GlobalStepStats totals_of(const LocalStepStats& local) const;
  Read read_sums(const LocalStepStats& local, const std::shared_ptr<StreamMark>& computed,
                 const EarlyUpdate& update);
  void finalize_bucket(size_t bucket, int64_t divisor);
  bool finalize_buckets(int64_t divisor);
  at::Tensor begin_means(int64_t divisor);
  void check_means(int64_t divisor, const Read& read, GlobalStepStats* totals);
  /// seconds: duration of the step so far, without the update.
  void conclude(double seconds, GlobalStepStats* totals);
  void count_messages(GlobalStepStats* totals) const;
  void name_missing();
  void learn(double seconds);
  bool is_under_way() const { return is_armed_ || late_divisor_; }

  Communicator& comm_;
  std::vector<FlatBuffer>& buffers_;
  const ParamTable& params_;
  SyncOptions options_;
  /// Null: gradients are packed on the CPU, or not at all.
  const std::shared_ptr<const DevicePacking> packing_kernels_;
  BucketAssignment assignment_;
  ReductionModes modes_;
  ScratchBuffer scratch_;  ///< before the buckets, which use it
  // by bucket
  std::vector<std::unique_ptr<BucketReduction>> buckets_;
  std::vector<MessageBucket*> messages_;  ///< the same objects; none if shared
  std::vector<Dropped> dropped_;          ///< contents of dropped elements in the means
  bool masks_changed_ = false;
  PackingChoice packing_;
  Autotuner overlap_trial_;
  bool overlap_is_faster_ = false;
  bool follows_backward_ = true;
  bool names_missing_ = true;
  std::vector<bool> was_named_;  ///< by parameter

  // of the current step
  bool is_armed_ = false;
  StepRequests requests_;
  bool sends_in_backward_ = false;  ///< the communication thread sends complete buckets
  size_t num_before_stats_ = 0;
  at::Tensor stats_V_;                              ///< this rank's, then their sums
  std::vector<std::unique_ptr<Work>> under_way_;    ///< by bucket, if asynchronous
  std::vector<std::shared_ptr<StreamMark>> marks_;  ///< by bucket; null: not marked
  size_t num_marked_ = 0;
  size_t num_unpacked_ = 0;  ///< the first buckets
  bool all_finite_ = true;   ///< means of the unpacked buckets
  size_t num_late_ = 0;      ///< trailing buckets that are still in transit after finish()
  std::optional<int64_t> late_divisor_;  ///< while buckets are late
  double early_s_ = 0;                   ///< of the step, until finish() returned with late buckets
  double late_wait_s_ = 0;               ///< waiting for late buckets
  Clock::time_point begin_, finish_start_;
  int64_t bytes_before_ = 0;

  // Declared last: hooks and thread are destroyed before the members they use.
  ReadyTracker ready_tracker_;
  std::unique_ptr<GradientHooks> hooks_;
  std::unique_ptr<CommunicationThread> thread_;  ///< created when first needed
};

}  // namespace lockstep::dist
