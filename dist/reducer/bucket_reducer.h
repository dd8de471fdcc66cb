#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "dist/bucket/scratch_buffer.h"
#include "dist/communicator.h"
#include "dist/reducer/bucket_reduction.h"
#include "dist/reducer/packing_choice.h"
#include "dist/reducer/reduce_scatter_bucket.h"
#include "dist/reducer/step_stats.h"
#include "dist/shard/bucket_assignment.h"
#include "dist/sync_options.h"

namespace lockstep::dist {

/// The gradients of all buffers on their way to the mean and back: what travels, in which buckets
/// and in which form. GradientReducer says when.
///
///   begin_step();  launch(0);  launch(1);  ...  wait();  take_means(n);  count(...);  learn();
///
/// Collective: begin_step() (after new masks), launch(), learn() (at the end of a trial). One
/// thread at a time; but while another one sends, this one may pack() buckets that are complete,
/// and unpack() those that were sent.
class BucketReducer {
 public:
  using Clock = std::chrono::steady_clock;

  /// Throws Error(kConfig) for packed: always or overlap: true on a device that cannot do it, or
  /// not with what else is asked for.
  BucketReducer(Communicator& comm, const ParamTable& params, const SyncOptions& options);

  /// Takes these buffers, if they are others than before: new buckets, without masks. True if so.
  bool rebuild(const std::vector<FlatBuffer>& buffers);
  /// GradientReducer::set_kept(), after follow().
  void set_kept(const std::vector<FlatBuffer>& buffers, size_t buffer,
                std::span<const uint8_t> bits, Dropped dropped);

  /// Since the last rebuild(). Where buckets are shared nothing travels, and take_means() comes
  /// after a collective, by which all gradients are complete.
  const BucketAssignment& assignment() const { return assignment_; }
  int64_t dense_bytes() const;
  /// Whether this step's seconds are used to choose how buckets travel.
  bool is_measuring() const { return packing_.is_measuring(); }

  /// Throws Error(kDisagree).everywhere() if masks are new and differ between ranks.
  void begin_step();
  /// Whether pack() may be ahead of launch(): each bucket has memory of its own.
  bool can_pack_beside() const { return !comm_.is_asynchronous() && !assignment_.is_sharded(); }
  /// Buckets 0 to num_buckets, exclusive, are complete once the calling thread's stream has done
  /// what is on it now: where calls are asynchronous they are sent behind that, and not behind what
  /// the stream gets later. By the thread that completes them, before launch().
  void mark_complete(size_t num_buckets);
  /// True if means may be used one bucket after another: nothing is divided or rounded, and all is
  /// float32 on the CPU.
  bool can_arrive_in_turn() const;
  /// The largest magnitude among the gradients of this bucket and those behind it, as they stand;
  /// infinite if one is not finite. Where can_arrive_in_turn().
  double largest_from(size_t bucket) const;
  /// Packs and rounds one complete bucket, unless another thread has done or does so.
  void pack(size_t bucket);
  /// Starts the reduction of one bucket, prepared if need be, and waits for it unless the
  /// communicator is asynchronous. Errors name the bucket, as those of wait() and gather().
  void launch(size_t bucket);
  /// Makes means of one bucket's sums, as take_means() does, which leaves it out then.
  void unpack(size_t bucket, int64_t divisor);
  /// Whether all means that unpack() gave in this step are finite.
  bool are_finite() const { return all_finite_; }
  /// Waits for what launch() only started.
  void wait();
  /// Sums become means over num_samples (or are divided by what else is given), zero where dropped.
  /// False if one is not finite, of those that this rank gets.
  bool take_means(int64_t divisor);
  /// The same on a device, without a wait of the host: their largest_of_all().
  at::Tensor begin_means(int64_t divisor);
  /// Whether gradients travel as backward leaves them and nothing is divided over the ranks.
  bool travel_whole() const;
  /// Bytes sent and saved, and seconds of the step; after bytes_reduced. finish_start: from when on
  /// nothing was overlapped.
  void count(Clock::time_point finish_start, GlobalStepStats* totals) const;
  /// Counts the step for what is measured. True if a choice was made.
  bool learn();

  /// All ranks' values to every rank, after each has updated its own. Collective. Adds to totals.
  /// Where they are shared a barrier.
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
  /// Runs a part; an error of it tells what was done with which bucket.
  template <typename Part>
  void with_bucket(const char* doing, size_t bucket, const Part& part) const;

  Communicator& comm_;
  const std::shared_ptr<const DevicePacking> packing_there_;  ///< null: on CPUs
  const SyncOptions options_;
  BucketAssignment assignment_;
  ScratchBuffer scratch_;  ///< before the reductions, which use it
  // by bucket
  std::vector<std::unique_ptr<BucketReduction>> bucket_reductions_;
  std::vector<ReduceScatterBucket*> reduce_scatters_;  ///< the same ones; only where pieces travel
  std::vector<Dropped> dropped_;  ///< what take_means() leaves where a mask drops
  std::vector<BucketTimes> times_;
  std::unique_ptr<std::atomic<PackState>[]> pack_states_;
  std::vector<std::shared_ptr<StreamMark>> marks_;  ///< null where not marked
  size_t num_marked_ = 0;
  size_t num_unpacked_ = 0;  ///< in this step: these and none behind them
  bool all_finite_ = true;   ///< of the unpacked ones
  bool masks_changed_ = false;
  PackingChoice packing_;
  std::vector<std::unique_ptr<Work>> under_way_;
};

}  // namespace lockstep::dist
