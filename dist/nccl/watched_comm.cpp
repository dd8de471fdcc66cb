#include "dist/nccl/watched_comm.h"

#include <algorithm>
#include <atomic>
#include <exception>

#include <fmt/format.h>
#include <unistd.h>

namespace lockstep::dist::nccl {

void PendingCollectives::add(std::shared_ptr<Event> begun, std::shared_ptr<Event> done,
                             std::string what, Clock::time_point now) {
  pending_.push_back({std::move(begun), std::move(done), std::move(what), ++num_added_, now});
}

std::optional<std::string> PendingCollectives::overdue(Clock::time_point now, double timeout_s) {
  // One stream: collectives end in the order in which they were enqueued.
  while (!pending_.empty() && pending_.front().done->is_reached()) {
    pending_.pop_front();
    last_progress_ = now;
  }
  if (pending_.empty()) return std::nullopt;
  const Pending& oldest = pending_.front();
  // The stream has not reached the collective: this rank still computes, no peer is late.
  if (!oldest.begun->is_reached()) {
    last_progress_ = now;
    return std::nullopt;
  }
  const auto since = std::max(oldest.enqueued, last_progress_);
  if (std::chrono::duration<double>(now - since).count() <= timeout_s) return std::nullopt;
  return fmt::format("collective {} ({})", oldest.number, oldest.what);
}

// WatchedComm: waiting threads poll events and never block inside CUDA or NCCL, so that they notice
// a failure. Closing runs on a detached thread, since NCCL may hang there; Handle keeps shared
// state alive.

namespace {

using Seconds = std::chrono::duration<double>;
using SteadyClock = std::chrono::steady_clock;

/// Longest expected call with the handle, in seconds. If a call hangs longer, abort() runs during
/// it.
constexpr double kCallLimitS = 1;
/// Seconds by which a waiting host thread gives up later than the watchdog.
constexpr double kWatchdogIsLateS = 1;

double seconds_since(SteadyClock::time_point start) {
  return Seconds(SteadyClock::now() - start).count();
}

SteadyClock::duration ticks(double seconds) {
  return std::chrono::duration_cast<SteadyClock::duration>(Seconds(seconds));
}

/// Waits between two polls: first only yields the core, since most waits are short.
void pause_since(SteadyClock::time_point start) {
  if (seconds_since(start) < 200e-6)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

Error unavailable(std::string_view what, const std::string& reason) {
  return {ExitCode::kUnavailable, "dist.nccl",
          fmt::format("{}: {} (a peer is lost or a device failed; NCCL does not report which rank: "
                      "start with the first rank that printed an error)",
                      what, reason)};
}

}  // namespace

void end_process(const Error& error) {
  const std::string line =
      fmt::format("E {} (a call of CUDA or NCCL did not return; the process ends)\n", error.what());
  static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
  _exit(static_cast<int>(error.code()));
}

WatchedComm::WatchedComm(std::shared_ptr<GpuCalls> gpu, WatchLimits limits)
    : gpu_(std::move(gpu)),
      limits_(std::move(limits)),
      handle_(std::make_shared<Handle>(gpu_)),
      watchdog_([this] { watch_until_end(); }) {}

WatchedComm::~WatchedComm() {
  {
    const std::lock_guard lock(mutex_);
    must_end_ = true;
  }
  wake_.notify_all();
  watchdog_.join();
  // During an exception the peers may never call the orderly shutdown.
  const bool in_order = !failure_ && std::uncaught_exceptions() == 0;
  if (!is_closing_) close_in_thread(in_order ? close_in_order : abort, limits_.grace_s);
  const auto since = failure_ ? failed_at_ : Clock::now();
  // An orderly shutdown may end in an abort.
  const double limit_s = (in_order ? 2 : 1) * limits_.grace_s;
  std::unique_lock lock(handle_->mutex);
  handle_->changed.wait_until(lock, since + ticks(limit_s), [&] { return handle_->is_closed; });
}

void WatchedComm::start(const std::string& unique_id, int num_ranks, int rank) {
  call("ncclCommInitRank",
       [&](CommHandle) { return gpu_->init(unique_id, num_ranks, rank, &handle_->comm); });
}

void WatchedComm::adopt(CommHandle handle) {
  {
    const std::lock_guard calls(handle_->calls);
    handle_->comm = handle;
  }
  call("a split communicator's start", [&](CommHandle comm) { return gpu_->state(comm); });
}

CommHandle WatchedComm::split(int color, int key) {
  call("ncclCommSplit",
       [&](CommHandle comm) { return gpu_->split(comm, color, key, &handle_->part); });
  try {
    const auto start = SteadyClock::now();
    while (std::atomic_ref(handle_->part).load() == nullptr) {
      if (seconds_since(start) > limits_.timeout_s) fail(hang("ncclCommSplit"));
      pause_since(start);
      require_healthy();
    }
  } catch (...) {  // NCCL may still write to `part`: leak the handle
    static_cast<void>(new std::shared_ptr<Handle>(handle_));
    throw;
  }
  return std::exchange(handle_->part, nullptr);
}

void WatchedComm::call(std::string_view what, const std::function<Result(CommHandle)>& part) {
  // The lock ends before each wait, so that the watchdog can poll the state meanwhile.
  const auto locked = [&](const std::function<Result(CommHandle)>& ask) {
    const std::lock_guard calls(handle_->calls);
    require_healthy();
    return ask(handle_->comm);
  };
  Result result = locked(part);
  const auto start = SteadyClock::now();
  while (result.is_in_progress()) {
    if (seconds_since(start) > limits_.timeout_s) fail(hang(std::string(what)));
    pause_since(start);
    result = locked([&](CommHandle comm) { return gpu_->state(comm); });
  }
  if (result.is_failed()) fail(unavailable(what, result.reason));
  require_healthy();
}

void WatchedComm::watch(std::shared_ptr<Event> begun, std::shared_ptr<Event> done,
                        std::string what) {
  const std::lock_guard lock(mutex_);
  pending_.add(std::move(begun), std::move(done), std::move(what), Clock::now());
}

void WatchedComm::wait_for_own_work(const Event& event) {
  for (const auto start = SteadyClock::now(); !event.is_reached(); pause_since(start))
    require_healthy();
  require_healthy();
}

void WatchedComm::wait_until_done(const Event& done) {
  const auto start = SteadyClock::now();
  while (!done.is_reached()) {
    require_healthy();
    // The watchdog normally fails first; this covers a hang of the watchdog.
    if (seconds_since(start) > limits_.timeout_s + kWatchdogIsLateS) fail(hang("a collective"));
    pause_since(start);
  }
  require_healthy();  // an aborted collective reaches its event too
}

void WatchedComm::require_healthy() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
}

Error WatchedComm::hang(const std::string& what) const {
  return {
      ExitCode::kWatchdog, "dist.nccl",
      fmt::format("{} did not end within {} s: some rank hangs or is unreachable (sync.timeout_s; "
                  "NCCL does not report which rank, sync.check_collectives: true does)",
                  what, limits_.timeout_s)};
}

void WatchedComm::fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    // Only the first error counts; later ones are its consequences.
    if (failure_) return;
    failure_ = error;
    failed_at_ = Clock::now();
    // See the class comment: other ranks must detect the hang before they see a lost peer.
    if (error.code() == ExitCode::kWatchdog)
      handle_->abort_not_before = failed_at_ + ticks(limits_.grace_s / 4);
  }
  wake_.notify_all();
}

void WatchedComm::watch_until_end() {
  const auto interval = Seconds(std::clamp(limits_.timeout_s / 20, 0.001, 0.1));
  std::unique_lock lock(mutex_);
  while (!failure_) {
    wake_.wait_for(lock, interval, [&] { return must_end_ || failure_; });
    if (must_end_) return;
    if (failure_) break;
    lock.unlock();
    look();
    lock.lock();
  }
  is_closing_ = true;
  close_in_thread(abort, limits_.grace_s);
  const auto end = failed_at_ + ticks(limits_.grace_s);
  if (wake_.wait_until(lock, end, [&] { return must_end_; })) return;
  const Error error = *failure_;
  lock.unlock();
  limits_.end_process(error);
}

void WatchedComm::look() {
  try {
    const auto on_device = gpu_->use_device();
    // A call in progress holds the lock; its own thread polls the state then.
    if (const std::unique_lock calls(handle_->calls, std::try_to_lock);
        calls.owns_lock() && handle_->comm != nullptr) {
      const Result state = gpu_->state(handle_->comm);
      if (state.is_failed()) fail(unavailable("a collective in flight", state.reason));
    }
    std::optional<std::string> overdue;
    {
      const std::lock_guard lock(mutex_);
      overdue = pending_.overdue(Clock::now(), limits_.timeout_s);
    }
    if (overdue) fail(hang(*overdue));
  } catch (const Error& error) {  // CUDA's: its streams are lost, and so is the communicator
    fail(error);
  } catch (const std::exception& error) {  // thrown by LibTorch when it calls CUDA
    fail(unavailable("CUDA", error.what()));
  }
}

void WatchedComm::close_in_thread(void (*close)(Handle&, double limit_s), double limit_s) {
  std::thread([handle = handle_, close, limit_s] {
    try {
      const auto on_device = handle->gpu->use_device();
      close(*handle, limit_s);
    } catch (...) {
      // No one could handle this error: the communicator is given up in any case.
    }
    const std::lock_guard lock(handle->mutex);
    handle->is_closed = true;
    handle->changed.notify_all();
  }).detach();
}

void WatchedComm::close_in_order(Handle& handle, double limit_s) {
  if (handle.comm == nullptr) return;
  const Result result = handle.gpu->finalize(handle.comm);
  if (wait_while_in_progress(handle, result, limit_s))
    static_cast<void>(handle.gpu->destroy_comm(handle.comm));
  else
    static_cast<void>(handle.gpu->abort(handle.comm));
}

void WatchedComm::abort(Handle& handle, double limit_s) {
  std::this_thread::sleep_until(handle.abort_not_before);
  // Waits for a running call, but at most kCallLimitS: ncclCommAbort may run during a call.
  std::unique_lock calls(handle.calls, std::try_to_lock);
  for (const auto start = SteadyClock::now();
       !calls.owns_lock() && seconds_since(start) < kCallLimitS;) {
    pause_since(start);
    static_cast<void>(calls.try_lock());
  }
  if (handle.comm == nullptr) return;
  const Result result = handle.gpu->abort(handle.comm);
  static_cast<void>(wait_while_in_progress(handle, result, limit_s));
}

bool WatchedComm::wait_while_in_progress(Handle& handle, Result result, double limit_s) {
  const auto start = SteadyClock::now();
  while (result.is_in_progress()) {
    if (seconds_since(start) > limit_s) return false;
    pause_since(start);
    result = handle.gpu->state(handle.comm);
  }
  return !result.is_failed();
}

}  // namespace lockstep::dist::nccl
