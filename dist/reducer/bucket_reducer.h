#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/tensors/device_backend.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "dist/communicator.h"
#include "dist/reducer/bucket_reduction.h"
#include "dist/reducer/buckets.h"
#include "dist/reducer/step_stats.h"
#include "dist/sync_options.h"

/// Reduction of all buckets, and the choices that are made by measurement.
namespace lockstep::dist {

/// Seconds of one item (a bucket, or a whole step) in one step on this rank.
struct ItemSeconds {
  double alone_s = 0;     ///< this rank's own work
  double together_s = 0;  ///< inside collectives, including the wait for later ranks
};

/// Decides by measurement which of two ways is faster, for each of several items. Steps use the
/// first and the second way alternately, kRounds times each, after one uncounted step of each. Then
/// the ranks agree on one result.
///
/// The time of an item in a step is the largest alone_s of the ranks plus the smallest together_s.
/// The last rank to enter a collective waits for no other, so its time is that of the transfer
/// itself. Each way is judged by its median over the rounds; the first way wins a tie.
class Autotuner {
 public:
  static constexpr int kRounds = 5;

  /// Starts a new trial and discards all measurements. num_items = 0: nothing to measure.
  void start(size_t num_items);
  bool is_running() const { return num_items_ > 0; }
  /// True if the current step must use the second way.
  bool takes_second() const { return is_running() && num_steps_ % 2 == 1; }

  /// Records the step's times, by item. After the last step the trial ends. The result says for
  /// each item whether the second way is faster; it is equal on all ranks. That last call is
  /// collective (one all_reduce), so all ranks make the same calls.
  std::optional<std::vector<bool>> add_step(const std::vector<ItemSeconds>& items,
                                            Communicator& comm);

 private:
  std::vector<bool> verdict(Communicator& comm);

  size_t num_items_ = 0;
  int num_steps_ = 0;
  std::vector<ItemSeconds> steps_;  ///< [2 * kRounds * items], step by step
};

/// Returns the kernels that pack gradients on a device; null if the CPU packs them or nothing is
/// packed. `auto` gives null on a device, since it would measure only the time to enqueue kernels.
/// Throws Error(kConfig) if sparse_allreduce: always is not possible.
std::shared_ptr<const DevicePacking> device_packing_for(Communicator& comm,
                                                        const SyncOptions& options);

/// Choice of the buckets that travel packed (dist/reducer/bucket_reduction.h). Equal on all ranks:
/// the inputs are equal and the ranks agree on measurements.
///
/// `auto` measures both ways for each bucket after each change of masks (Autotuner) and keeps the
/// faster one. The result is part of the checkpoint, with a digest of the fingerprint it belongs
/// to. A resumed run with the same fingerprint repeats the choice without measuring. An unfinished
/// trial is not saved; it starts again.
class PackingChoice {
 public:
  /// mode: auto, always, never.
  explicit PackingChoice(std::string mode);

  /// Adopts new masks or buckets. can_pack: by bucket. fingerprint: digest of all that the times
  /// depend on (masks, buckets, ranks, wire type).
  void follow(std::vector<bool> can_pack, uint64_t fingerprint);
  /// True if this bucket travels packed in the current step.
  bool packs(size_t bucket) const;
  bool is_measuring() const { return autotuner_.is_running(); }

  /// Records the step's times, by bucket. Collective at the end of a trial. True if the choice may
  /// have changed.
  bool add_step(const std::vector<ItemSeconds>& buckets, Communicator& comm);

  /// Checkpoint state `_lockstep/sync/packed`: live text, "<digest> <0 or 1 for each bucket>".
  /// Empty before a result, and if a checkpoint has none.
  StateList state();

 private:
  bool adopt_stored();

  const std::string mode_;
  std::vector<bool> can_pack_, chosen_;
  uint64_t situation_ = 0;
  Autotuner autotuner_;
  std::string stored_;
};

/// Reduces the gradients of all buffers to means: chooses buckets, payloads and formats.
/// GradientReducer chooses the times.
///
///   begin_step();  launch(0);  launch(1);  ...  wait();  take_means(n);  count(...);  learn();
///
/// Collective: begin_step() (after new masks), launch(), learn() (at the end of a trial). One
/// thread at a time, with one exception: while a thread sends, another one may pack() complete
/// buckets and unpack() those that were sent.
class BucketReducer {
 public:
  using Clock = std::chrono::steady_clock;

  /// Throws Error(kConfig) for packed: always or overlap: true if the device, or another option,
  /// does not support it.
  BucketReducer(Communicator& comm, const ParamTable& params, const SyncOptions& options);

  /// Adopts these buffers if they differ from the previous ones: new buckets, without masks. True
  /// if so.
  bool rebuild(const std::vector<FlatBuffer>& buffers);
  /// Implements GradientReducer::set_kept(). Call rebuild() first.
  void set_kept(const std::vector<FlatBuffer>& buffers, size_t buffer,
                std::span<const uint8_t> bits, Dropped dropped);

  /// Assignment since the last rebuild(). Shared buckets send nothing; a collective must precede
  /// take_means(), so that all gradients are complete.
  const BucketAssignment& assignment() const { return assignment_; }
  int64_t dense_bytes() const;
  /// True if this step's seconds are used to choose the packing of buckets.
  bool is_measuring() const { return packing_.is_measuring(); }

  /// Throws Error(kDisagree).everywhere() if masks are new and differ between ranks.
  void begin_step();
  /// True if pack() may run before launch() of earlier buckets: each bucket has its own memory.
  bool can_pack_beside() const { return !comm_.is_asynchronous() && !assignment_.is_sharded(); }
  /// Declares that buckets 0 to num_buckets, exclusive, are complete once the calling thread's
  /// stream has done its present work. With asynchronous calls, these buckets are sent after that
  /// work only, not after later work of the stream. Called by the thread that completes them,
  /// before launch().
  void mark_complete(size_t num_buckets);
  /// True if means may be used bucket by bucket: nothing is sharded or rounded, and all gradients
  /// are float32 on the CPU.
  bool can_arrive_in_turn() const;
  /// Returns the largest magnitude among the present gradients of this bucket and all later ones.
  /// Infinite if one is not finite. Requires can_arrive_in_turn().
  double largest_from(size_t bucket) const;
  /// Packs and rounds one complete bucket, unless another thread did. Waits for a thread that is
  /// doing it.
  void pack(size_t bucket);
  /// Starts the reduction of one bucket, packs it if necessary, and waits for it unless the
  /// communicator is asynchronous. Errors name the bucket, as those of wait() and gather() do.
  void launch(size_t bucket);
  /// Divides one bucket's sums. take_means() then skips this bucket.
  void unpack(size_t bucket, int64_t divisor);
  /// True if all means of unpack() in this step are finite.
  bool are_finite() const { return all_finite_; }
  /// Waits for the asynchronous reductions that launch() started.
  void wait();
  /// Divides all remaining sums by `divisor` and zeroes dropped elements, unless these may be
  /// undefined. False if a mean of this rank is not finite.
  bool take_means(int64_t divisor);
  /// Divides all remaining sums on a device, without a wait of the host. Returns largest_of_all()
  /// of the means.
  at::Tensor begin_means(int64_t divisor);
  /// True if gradients travel in place and undivided: not sharded, not rounded, not packed on a
  /// device.
  bool travel_whole() const;
  /// Adds bytes sent and saved, and seconds of the step. bytes_reduced must be set. finish_start:
  /// time from which nothing was overlapped.
  void count(Clock::time_point finish_start, GlobalStepStats* totals) const;
  /// Feeds the step to the running measurement. True if it made a choice.
  bool learn();

  /// Gathers all values on every rank, after each has updated its shard. Collective. Adds to
  /// totals. For shared values this is only a barrier.
  void gather(const std::vector<FlatBuffer>& buffers, GatherTotals* totals);

  StateList state() { return packing_.state(); }

 private:
  struct BucketTimes {
    Clock::time_point start, packed, launched, reduced;
    double unpack_s = 0;
  };
  enum class PackState { kNone, kUnderWay, kDone, kFailed };

  std::unique_ptr<BucketReduction> make_reduction(size_t bucket, const FlatBuffer& buffer);
  std::unique_ptr<BucketReduction> make_divided(size_t bucket, const FlatBuffer& buffer);
  uint64_t fingerprint() const;
  /// Runs a part; its errors get the operation and the bucket appended.
  template <typename Part>
  void with_bucket(const char* doing, size_t bucket, const Part& part) const;

  Communicator& comm_;
  const std::shared_ptr<const DevicePacking> packing_there_;  ///< kernels that pack on the device;
                                                              ///< null on CPUs
  const SyncOptions options_;
  BucketAssignment assignment_;
  ScratchBuffer scratch_;  ///< before the reductions, which use it
  // by bucket
  std::vector<std::unique_ptr<BucketReduction>> bucket_reductions_;
  std::vector<ReduceScatterBucket*> reduce_scatters_;  ///< the same objects; only if sharded
  std::vector<Dropped> dropped_;  ///< contents of dropped elements after take_means()
  std::vector<BucketTimes> times_;
  std::unique_ptr<std::atomic<PackState>[]> pack_states_;
  std::vector<std::shared_ptr<StreamMark>> marks_;  ///< null: not marked
  size_t num_marked_ = 0;
  size_t num_unpacked_ = 0;  ///< in this step: the first buckets
  bool all_finite_ = true;   ///< means of the unpacked buckets
  bool masks_changed_ = false;
  PackingChoice packing_;
  std::vector<std::unique_ptr<Work>> under_way_;
};

}  // namespace lockstep::dist
