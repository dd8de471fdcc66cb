// Overlap of reduction and backward, from the hook of a gradient to the order of messages.
#include "dist/reducer/overlap.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <unistd.h>

#include "base/error.h"
#include "base/trace.h"

/// OpenMP's function. Clang-tidy finds no <omp.h>.
extern "C" void omp_set_num_threads(int);

namespace lockstep::dist {

// GradientHooks: hooks on autograd's AccumulateGrad nodes, which run once the gradient is in
// `grad`. (Hooks of tensors would run before that.)

namespace {

using torch::autograd::variable_list;

/// Post-hook of one parameter's accumulator node.
class TellParam final : public torch::autograd::FunctionPostHook {
 public:
  TellParam(const GradientHooks::Listener& listener, int64_t param)
      : listener_(listener), param_(param) {}

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    listener_(param_);
    return outputs;
  }

 private:
  const GradientHooks::Listener& listener_;
  int64_t param_;
};

}  // namespace

/// The node that accumulates a parameter's gradients. Holding it makes LibTorch reuse it in the
/// next graph.
struct GradientHooks::Hook {
  int64_t param;
  std::shared_ptr<torch::autograd::Node> accumulator;
  std::uintptr_t key;
};

GradientHooks::GradientHooks(const ParamTable& params, Listener on_gradient)
    : on_gradient_(std::move(on_gradient)) {
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].tensor.requires_grad()) continue;
    auto accumulator = torch::autograd::impl::grad_accumulator(params[i].tensor);
    const std::uintptr_t key = accumulator->add_post_hook(
        std::make_unique<TellParam>(on_gradient_, static_cast<int64_t>(i)));
    hooks_.push_back({static_cast<int64_t>(i), std::move(accumulator), key});
  }
}

std::vector<int64_t> GradientHooks::with_one_source(const at::Tensor& root) const {
  // Walks the whole graph once. An accumulator with one incoming edge has one source.
  std::unordered_map<const torch::autograd::Node*, int64_t> num_edges_to;
  std::vector<const torch::autograd::Node*> open{root.grad_fn().get()};
  while (!open.empty()) {
    const torch::autograd::Node* const node = open.back();
    open.pop_back();
    if (node == nullptr) continue;
    for (const torch::autograd::Edge& edge : node->next_edges())
      if (++num_edges_to[edge.function.get()] == 1) open.push_back(edge.function.get());
  }
  std::vector<int64_t> params;
  for (const Hook& hook : hooks_)
    if (num_edges_to[hook.accumulator.get()] == 1) params.push_back(hook.param);
  return params;
}

GradientHooks::~GradientHooks() {
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
}

// ReadyTracker: counts the missing gradients of each bucket with atomics, since several autograd
// threads may mark at once. The mutex guards only the number of leading complete buckets.

/// A user's network can cause this, so it is not kBug.
static void require_first(bool is_first) {
  if (is_first) return;
  throw Error(
      ExitCode::kConfig, "dist",
      "a parameter got a second gradient in one step: part of the network runs its own backward "
      "pass, as torch.utils.checkpoint does with use_reentrant=True: use use_reentrant=False. In a "
      "custom loop, call prepare_for_backward() before the last backward pass");
}

void ReadyTracker::rebuild(const std::vector<Bucket>& buckets) {
  int64_t last_param = -1;
  for (const Bucket& bucket : buckets)
    for (const int64_t param : bucket.params) last_param = std::max(last_param, param);
  params_ = std::vector<Param>(static_cast<size_t>(last_param + 1));
  num_awaited_.clear();
  for (size_t b = 0; b < buckets.size(); ++b) {
    num_awaited_.push_back(static_cast<int32_t>(buckets[b].params.size()));
    for (const int64_t param : buckets[b].params) {
      std::vector<Part>& parts = params_[static_cast<size_t>(param)].parts;
      // mark_parts() stops at the first missing part, so parts must ascend in memory.
      check(parts.empty() || buckets[parts.back().bucket].end_E == buckets[b].begin_E,
            "the pieces of a parameter are in memory order");
      const int64_t begin_E = parts.empty() ? 0 : parts.back().end_E;
      // A bucket with other parameters is completed only by mark_ready().
      parts.push_back({b, buckets[b].params.size() > 1 ? std::numeric_limits<int64_t>::max()
                                                       : begin_E + buckets[b].num_elements()});
    }
  }
  num_missing_ = std::vector<std::atomic<int32_t>>(buckets.size());
  begin();
}

void ReadyTracker::begin() {
  for (Param& param : params_) {
    param.num_there = 0;
    param.is_there = false;
  }
  for (size_t b = 0; b < num_awaited_.size(); ++b)
    num_missing_[b] = std::max(num_awaited_[b], 1);  // without parameters: never complete
  const std::lock_guard lock(mutex_);
  num_complete_ = 0;
}

bool ReadyTracker::mark_ready(int64_t param) {
  Param* const arrived = find(param);
  if (arrived == nullptr) return false;
  require_first(!arrived->is_there.exchange(true));
  return mark_parts(*arrived, std::numeric_limits<int64_t>::max());
}

bool ReadyTracker::mark_written(int64_t param, int64_t num_elements) {
  Param* const arriving = find(param);
  if (arriving == nullptr) return false;
  require_first(!arriving->is_there);
  return mark_parts(*arriving, num_elements);
}

ReadyTracker::Param* ReadyTracker::find(int64_t param) {
  if (param < 0 || static_cast<size_t>(param) >= params_.size()) return nullptr;
  Param& found = params_[static_cast<size_t>(param)];
  return found.parts.empty() ? nullptr : &found;
}

bool ReadyTracker::mark_parts(Param& param, int64_t num_elements) {
  bool completed = false;
  for (; param.num_there < param.parts.size(); ++param.num_there) {
    const Part& part = param.parts[param.num_there];
    if (part.end_E > num_elements) break;
    // acq_rel: the thread that completes a bucket sees the gradients that other threads wrote.
    completed = num_missing_[part.bucket].fetch_sub(1, std::memory_order_acq_rel) == 1 || completed;
  }
  if (!completed) return false;

  const std::lock_guard lock(mutex_);
  const size_t before = num_complete_;
  while (num_complete_ < num_awaited_.size() &&
         num_missing_[num_complete_].load(std::memory_order_acquire) == 0)
    ++num_complete_;
  return num_complete_ > before;
}

size_t ReadyTracker::num_complete() const {
  const std::lock_guard lock(mutex_);
  return num_complete_;
}

std::vector<int64_t> ReadyTracker::missing() const {
  std::vector<int64_t> params;
  for (size_t i = 0; i < params_.size(); ++i)
    if (!params_[i].parts.empty() && !params_[i].is_there)
      params.push_back(static_cast<int64_t>(i));
  return params;
}

bool ReadyTracker::any() const {
  return std::ranges::any_of(params_, [](const Param& param) { return param.is_there.load(); });
}

// CommunicationThread: executes released jobs in order. The mutex guards the round's state, never a
// job.

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
  check(is_open_ && num_jobs <= num_released_, "waiting for a job that was not released");
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
  omp_set_num_threads(1);
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
