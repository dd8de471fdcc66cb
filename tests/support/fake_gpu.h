#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/nccl/gpu_calls.h"

namespace lockstep::tests {

/// Fault on one rank (the victim) of a FakeCluster.
enum class FakeFault {
  kNone,
  kHang,         ///< the victim's device never begins the collective
  kHostHang,     ///< the victim's host never makes the call
  kKill,         ///< the victim is gone before the call, and NCCL tells its peers
  kKillUnseen,   ///< the victim ends before the call, without a notice
  kAsyncError,   ///< the victim's communicator fails while the collective runs
  kCudaError,    ///< the victim's device fails: every later look at an event throws
  kTorchError,   ///< the victim's device stops, and who looks but its caller gets LibTorch's error
  kRefusedCall,  ///< the victim's call of NCCL fails
  kCallNeverEnds,  ///< the victim's call of NCCL stays in progress
  kLate,           ///< all devices are slow, each collective by another time: no fault
};

struct FakePlan {
  FakeFault fault = FakeFault::kNone;
  int victim = -1;
  int64_t at_collective = -1;  ///< of the victim's collectives, from 0
  bool init_hangs = false;     ///< the victim never begins the communicator
  bool abort_hangs = false;    ///< on every rank, until release()
  bool finalize_hangs = false;
  bool refuses_pinned_memory = false;
  /// The callers' streams are threads, too (FakeCluster::enqueue()); else the caller's host thread.
  bool has_async_callers = false;
  /// Longest random sleep before each job of a stream, in microseconds; drawn with the seed.
  int most_delay_us = 0;
  uint64_t seed = 0;
};

/// Exception of a killed rank's call: its thread has nothing left to do.
struct Killed {};

/// N devices, one for each rank (a thread), whose memory is the CPU's. Each has a stream that does
/// what was enqueued in order, on a thread of its own: collectives, kernels, events. The caller's
/// stream is the caller's host thread, so that to hold it is what a copy to the host is on a real
/// device: the thread waits without limit, until the event is reached or the communicator is
/// aborted, and continues with garbage (bytes 0xFF) in the second case.
///
/// As NCCL's, communicators are not told of each other's mistakes: collectives that do not match
/// wait for ever. A rank that aborts is seen by its peers as a lost one. Calls take some time,
/// during which the communicator is in progress, and nothing is enqueued before it is asked for.
class FakeCluster {
 public:
  explicit FakeCluster(int num_ranks, const FakePlan& plan = {});
  /// release(); then waits for the devices' threads.
  ~FakeCluster();
  FakeCluster(const FakeCluster&) = delete;
  FakeCluster& operator=(const FakeCluster&) = delete;

  std::shared_ptr<dist::nccl::GpuCalls> gpu(int rank);

  /// Puts a kernel on the stream of this rank's callers; only with has_async_callers.
  void enqueue(int rank, std::function<void()> kernel);

  /// Ends all that hangs.
  void release();
  /// Collectives that this rank has called so far, over all communicators.
  int64_t num_collectives(int rank) const;
  /// Calls that a real device or NCCL would punish: with another device current, with a handle that
  /// is gone, two at a time; copies of, or into, memory that was given back meanwhile.
  std::vector<std::string> breaches() const;

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace lockstep::tests
