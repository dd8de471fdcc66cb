#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
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

/// NCCL communicator with a watchdog, and the list of its pending collectives.
namespace lockstep::dist::nccl {

/// Collectives of a communicator that are not known to be done, oldest first. One thread at a time.
class PendingCollectives {
 public:
  using Clock = std::chrono::steady_clock;

  /// Adds a collective. `begun`: event after which it may start. `what` names it in messages, such
  /// as "all_reduce of 10 Float".
  void add(std::shared_ptr<Event> begun, std::shared_ptr<Event> done, std::string what,
           Clock::time_point now);

  /// Removes completed collectives. Returns the oldest, as text with its number since the start
  /// (from 1), if it has made no progress for more than timeout_s. Its time starts when `begun` is
  /// reached and the previous collective has ended. So neither a long backward pass nor a long
  /// queue is an error.
  std::optional<std::string> overdue(Clock::time_point now, double timeout_s);

 private:
  struct Pending {
    std::shared_ptr<Event> begun, done;
    std::string what;
    int64_t number;
    Clock::time_point enqueued;
  };
  std::deque<Pending> pending_;
  int64_t num_added_ = 0;
  Clock::time_point last_progress_{};
};

/// Prints the error on stderr and ends the process with its code; runs no destructors.
[[noreturn]] void end_process(const Error& error);

struct WatchLimits {
  double timeout_s = 300;  ///< longest wait for a peer: sync.timeout_s
  /// Seconds after a failure within which the process must end by itself. That covers the abort,
  /// the return of the host thread, and unwinding to the communicator's destruction.
  double grace_s = 4;
  /// Function that the watchdog's thread calls when that time is over.
  std::function<void(const Error&)> end_process = nccl::end_process;
};

/// An NCCL communicator and its watchdog: a thread that polls asynchronous errors and the oldest
/// pending collective.
///
///   timeout_s exceeded  Error(kWatchdog): a rank hangs or is cut off
///   NCCL reports one    Error(kUnavailable): a peer is lost, or a device failed
///
/// The first error is final: each later call throws it again. The watchdog aborts the communicator,
/// which ends its kernels. A host thread that waits inside CUDA for a stream (a copy, an item())
/// then returns, with undefined data. So call require_healthy() after reading from the device,
/// before using the data.
///
/// To its peers an abort looks like a lost rank. So after a timeout a rank waits a quarter of
/// grace_s before the abort, in which other ranks detect the hang themselves. If the process still
/// runs grace_s after the failure, the watchdog ends it. Threads: call(), wait_until_done() and the
/// destructor from one thread at a time.
class WatchedComm {
 public:
  WatchedComm(std::shared_ptr<GpuCalls> gpu, WatchLimits limits);
  WatchedComm(const WatchedComm&) = delete;
  WatchedComm& operator=(const WatchedComm&) = delete;
  /// Closes the communicator, normally in an orderly way, together with the peers. Aborts it after
  /// a failure, during an exception (the peers may never call), or if the orderly shutdown takes
  /// too long. Waits at most grace_s for each.
  ~WatchedComm();

  /// Creates the handle, together with the other ranks. Call it once. Throws like call().
  void start(const std::string& unique_id, int num_ranks, int rank);
  /// Takes ownership of a handle, instead of start(). Waits until NCCL allows its use, which may be
  /// later than the end of the call that created it. Throws like call().
  void adopt(CommHandle handle);
  /// Creates a handle over the ranks with this color; the caller owns it. Throws like call().
  CommHandle split(int color, int key);

  /// Makes one NCCL call and waits until NCCL has accepted it (not until it is done). Throws the
  /// communicator's error, which may come from this call's failure or delay.
  void call(std::string_view what, const std::function<Result(CommHandle)>& part);

  /// Makes the watchdog wait for `done`, from when `begun` is reached (PendingCollectives).
  void watch(std::shared_ptr<Event> begun, std::shared_ptr<Event> done, std::string what);
  /// Waits on the host for an event of this rank's own work, without time limit. Throws the
  /// communicator's error, also if the event was reached after an abort.
  void wait_for_own_work(const Event& event);
  /// Waits on the host for the event. Returns only if all collectives up to it completed.
  void wait_until_done(const Event& done);
  /// Throws the communicator's error if there is one.
  void require_healthy();

  const WatchLimits& limits() const { return limits_; }

 private:
  using Clock = std::chrono::steady_clock;

  /// State shared with a thread that closes the handle, and that may hang in it.
  struct Handle {
    explicit Handle(std::shared_ptr<GpuCalls> calls_of) : gpu(std::move(calls_of)) {}
    const std::shared_ptr<GpuCalls> gpu;
    std::mutex calls;  ///< held during a call with the handle
    CommHandle comm = nullptr;
    std::chrono::steady_clock::time_point abort_not_before{};  ///< set before it is closed
    /// Result of the last split(); NCCL may write it after `comm` reports the end of the call.
    CommHandle part = nullptr;
    std::mutex mutex;  ///< guards all below
    std::condition_variable changed;
    bool is_closed = false;
  };

  void fail(const Error& error);
  Error hang(const std::string& what) const;
  void watch_until_end();
  void look();
  /// Runs `close` on a detached thread.
  void close_in_thread(void (*close)(Handle&, double limit_s), double limit_s);
  static void close_in_order(Handle& handle, double limit_s);
  static void abort(Handle& handle, double limit_s);
  static bool wait_while_in_progress(Handle& handle, Result result, double limit_s);

  const std::shared_ptr<GpuCalls> gpu_;
  const WatchLimits limits_;
  const std::shared_ptr<Handle> handle_;
  std::mutex mutex_;  ///< guards all below
  std::condition_variable wake_;
  PendingCollectives pending_;
  std::optional<Error> failure_;
  Clock::time_point failed_at_;
  bool is_closing_ = false;
  bool must_end_ = false;
  std::thread watchdog_;
};

}  // namespace lockstep::dist::nccl
