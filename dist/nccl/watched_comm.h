#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "dist/nccl/gpu_calls.h"
#include "dist/nccl/pending_collectives.h"

namespace lockstep::dist::nccl {

/// Prints the error on stderr and ends the process with its code; runs no destructors.
[[noreturn]] void end_process(const Error& error);

struct WatchLimits {
  double timeout_s = 300;  ///< longest wait for a peer: sync.timeout_s
  /// After a failure the process has this long to end by itself: for the abort, for the host
  /// thread to come back, and to unwind as far as the communicator's destruction.
  double grace_s = 4;
  /// Called by the watchdog's thread when that time is over.
  std::function<void(const Error&)> end_process = nccl::end_process;
};

/// An NCCL communicator and its watchdog: a thread that looks for asynchronous errors and at the
/// oldest collective that is not done.
///
///   timeout_s over      Error(kWatchdog): some rank hangs or is cut off
///   NCCL says failed    Error(kUnavailable): a peer is lost, or a device failed
///
/// The first error is the communicator's for good: each later call throws it again. The watchdog
/// aborts the communicator, which ends its kernels, so that a host thread that waits inside CUDA
/// for a stream (a copy, an item()) comes back, with garbage: whoever has read from the device asks
/// require_healthy() before it believes what it read. To its peers an abort looks like a lost rank;
/// so a rank whose time is over waits a quarter of grace_s before it, in which those that began to
/// wait at about the same time find the hang by themselves. Where the process still stands grace_s
/// after the failure (the abort hangs, or the host thread does elsewhere), the watchdog ends it.
///
/// Threads: call(), wait_until_done() and the destructor from one thread at a time.
class WatchedComm {
 public:
  WatchedComm(std::shared_ptr<GpuCalls> gpu, WatchLimits limits);
  WatchedComm(const WatchedComm&) = delete;
  WatchedComm& operator=(const WatchedComm&) = delete;
  /// Closes the communicator: in order, together with the peers, or by abort after a failure, while
  /// an exception passes (the peers may never come) and where the orderly end takes too long. Waits
  /// for either, no longer than grace_s each.
  ~WatchedComm();

  /// Makes the handle, together with the other ranks. Once; throws as call().
  void start(const std::string& unique_id, int num_ranks, int rank);
  /// Instead of start(): takes over a handle, of which it is the owner from now on, and waits until
  /// NCCL lets it be used, which may be later than the call that made it is done. Throws as call().
  void adopt(CommHandle handle);
  /// A new handle, over the ranks with this color; the caller is its owner. Throws as call().
  CommHandle split(int color, int key);

  /// One call of NCCL, waited for until NCCL has taken it (not until it is done). Throws the
  /// communicator's error, of which the call's failure or delay may be the cause.
  void call(std::string_view what, const std::function<Result(CommHandle)>& part);

  /// From now on the watchdog waits for `done`, and counts from when `begun` is reached: what the
  /// collective is held behind, this rank's own computing say, is not a peer's delay.
  void watch(std::shared_ptr<Event> begun, std::shared_ptr<Event> done, std::string what);
  /// The host waits for an event of this rank's own work, which may take as long as it likes, while
  /// the communicator is healthy. Throws its error, also where that was reached behind an aborted
  /// collective, over garbage.
  void wait_for_own_work(const Event& event);
  /// The host waits for the event. Returns only if all collectives up to it were completed.
  void wait_until_done(const Event& done);
  /// Throws the communicator's error if there is one.
  void require_healthy();

  const WatchLimits& limits() const { return limits_; }

 private:
  using Clock = std::chrono::steady_clock;

  /// What a thread that closes the handle, and may hang in it, shares with this object.
  struct Handle {
    explicit Handle(std::shared_ptr<GpuCalls> calls_of) : gpu(std::move(calls_of)) {}
    const std::shared_ptr<GpuCalls> gpu;
    std::mutex calls;  ///< held by a call with the handle
    CommHandle comm = nullptr;
    std::chrono::steady_clock::time_point abort_not_before{};  ///< set before it is closed
    CommHandle part = nullptr;  ///< of the last split(); NCCL writes it some time after `comm` says
                                ///< that the call is done
    std::mutex mutex;           ///< of all below
    std::condition_variable changed;
    bool is_closed = false;
  };

  void wait_until_taken(Result result, std::string_view what);
  void wait_for_part();
  void fail(const Error& error);
  Error hang(const std::string& what) const;
  void look_at_state();
  void watch_until_end();
  void look();
  /// Runs `close` on a thread of its own.
  void close_beside(void (*close)(Handle&, double limit_s), double limit_s);
  static void close_in_order(Handle& handle, double limit_s);
  static void abort(Handle& handle, double limit_s);
  static bool wait_while_in_progress(Handle& handle, Result result, double limit_s);

  const std::shared_ptr<GpuCalls> gpu_;
  const WatchLimits limits_;
  const std::shared_ptr<Handle> handle_;
  std::mutex mutex_;  ///< of all below
  std::condition_variable wake_;
  PendingCollectives pending_;
  std::optional<Error> failure_;
  Clock::time_point failed_at_;
  bool is_closing_ = false;
  bool must_end_ = false;
  std::thread watchdog_;
};

}  // namespace lockstep::dist::nccl
