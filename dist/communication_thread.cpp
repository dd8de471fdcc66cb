// A thread that executes released jobs in order. The mutex guards the round's state, never a job.
#include "dist/communication_thread.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/trace/trace_span.h"

/// OpenMP's function, from LibTorch's OpenMP library; null without one.
extern "C" void omp_set_num_threads(int) __attribute__((weak));

namespace lockstep::dist {
namespace {

// Nice value: 0 is normal, -20 the highest priority.
constexpr int kNice = -15;

/// The kernel's struct sched_attr, first version.
struct SchedulingWish {
  uint32_t size = 48, policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t slice_ns = 0, deadline = 0, period = 0;
};
static_assert(sizeof(SchedulingWish) == 48);

/// Asks the scheduler to run this thread at once when a message arrives, even if other threads
/// compute: short time slices and a higher priority. Both are best effort. Time slices need Linux
/// 6.12, priority a privilege (CAP_SYS_NICE). Without them the network may be idle for some
/// milliseconds while backward uses all cores.
void ask_to_come_first() {
  SchedulingWish wish;
  if (syscall(SYS_sched_getattr, 0, &wish, sizeof wish, 0) == 0) {
    wish.slice_ns = 100'000;
    static_cast<void>(syscall(SYS_sched_setattr, 0, &wish, 0));
  }
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice));
}

}  // namespace

CommunicationThread::CommunicationThread(std::function<void(size_t)> job)
    : job_(std::move(job)), thread_([this] { run(); }) {}

CommunicationThread::~CommunicationThread() {
  {
    const std::lock_guard lock(mutex_);
    must_end_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void CommunicationThread::begin() {
  const std::lock_guard lock(mutex_);
  check(!is_open_ && !is_busy_, "a round of jobs begins while another is open");
  is_open_ = true;
  num_released_ = num_done_ = 0;
  fault_ = nullptr;
}

void CommunicationThread::release(size_t num_jobs) {
  {
    const std::lock_guard lock(mutex_);
    num_released_ = std::max(num_released_, num_jobs);
    // A busy thread looks for the next job itself, before it sleeps.
    if (is_busy_ || !may_start()) return;
  }
  wake_.notify_one();
}

bool CommunicationThread::wait_for(size_t num_jobs) {
  std::unique_lock lock(mutex_);
  check(is_open_ && num_jobs <= num_released_, "waiting for a job that nobody released");
  idle_.wait(lock, [&] { return fault_ || num_done_ >= num_jobs; });
  return !fault_;
}

size_t CommunicationThread::end() {
  std::unique_lock lock(mutex_);
  check(is_open_, "no round of jobs is open");
  is_open_ = false;
  idle_.wait(lock, [&] { return !is_busy_; });
  // The job's error is thrown on the caller's thread.
  if (fault_) std::rethrow_exception(std::exchange(fault_, nullptr));
  return num_done_;
}

void CommunicationThread::run() {
  trace::name_thread("all-reduce");
  ask_to_come_first();
  // OpenMP helpers would delay this thread and take cores from backward.
  if (omp_set_num_threads != nullptr) omp_set_num_threads(1);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return must_end_ || may_start(); });
    if (must_end_) return;
    is_busy_ = true;
    // The job runs without the lock, so that release() never blocks autograd.
    const size_t job = num_done_;
    lock.unlock();
    std::exception_ptr fault;
    try {
      job_(job);
    } catch (...) {
      fault = std::current_exception();
    }
    lock.lock();
    is_busy_ = false;
    fault_ = fault;
    // After a fault no job starts; end() throws it.
    if (!fault) ++num_done_;
    idle_.notify_one();
  }
}

}  // namespace lockstep::dist
