// The backend "lockstep" of torch.distributed. PyTorch loads this library by
// torch.ops.load_library(); it calls neither Python nor pybind11, so it works with every CPython of
// one torch release. python/lockstep/process_group.py registers it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/error.h"
#include "base/threads.h"
#include "dist/communicator.h"
#include "dist/cpu/make_communicator.h"
#include "pytorch/gloo_ranks.h"

namespace lockstep::pytorch {
namespace {

using c10d::OpType;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

/// Name of a call in torch.profiler and flight recorders.
struct Name {
  OpType type;
  const char* title;
  Tensors inputs;
};

/// Tensors of the user's that a thread of gloo or of a backend was the last to use. Thread-safe.
class UsedTensors {
 public:
  void add(at::Tensor values) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(values));
  }
  /// Releases them. Called by the user's threads only.
  void release() {
    Tensors released;
    const std::lock_guard lock(mutex_);
    released.swap(all_);
  }

 private:
  std::mutex mutex_;
  Tensors all_;
};

UsedTensors& used_tensors() {
  static auto* const all = new UsedTensors;  // threads use it while the process exits
  return *all;
}

/// A call of gloo under the name of this backend.
class DelegatedCall final : public c10d::Work {
 public:
  DelegatedCall(const Name& name, WorkPtr inner)
      : Work(-1, name.type, name.title, std::optional(name.inputs)), inner_(std::move(inner)) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  Tensors result() override { return inner_->result(); }
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool is_done = inner_->wait(timeout);
    finish();
    used_tensors().release();
    return is_done;
  }

 private:
  const WorkPtr inner_;
};

[[noreturn]] void fail(const std::string& text) {
  throw c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text);
}

/// Text of an error in the words that PyTorch's users search for.
std::string text_of(const Error& error) {
  const std::string text = text_for_python(error, "the timeout of init_process_group or new_group");
  switch (error.code()) {
    case ExitCode::kWatchdog:
      return "Timed out: " + text;
    case ExitCode::kUnavailable:
      return "Connection closed: " + text;
    default:
      return text;
  }
}

using Body = std::function<void(dist::Communicator&)>;
/// Begins a small call.
using Begin = std::function<std::unique_ptr<dist::Work>(dist::Communicator&)>;

/// The communicator of a group, for one call at a time. After a call that failed, ranks no longer
/// agree on what they have sent: all later calls fail with its text.
class Native {
 public:
  explicit Native(std::unique_ptr<dist::Communicator> comm) : comm_(std::move(comm)) {}

  /// Runs the body, after a call that has begun. Throws DistBackendError for each Error.
  void call(const Body& body, double timeout_s) {
    const std::lock_guard lock(mutex_);  // a thread of the user's may make a call at the same time
    guarded(timeout_s, [&] {
      finish_begun();
      body(*comm_);
    });
  }

  enum class Begun { kNot, kUnderWay, kDone };

  /// Begins a call. If the other ranks have begun it too, finishes it and runs `end`; else the next
  /// call() finishes it and it counts as queued. Begins nothing while another call is under way.
  /// Stores an error, which the next call() throws.
  Begun begin(const Begin& begin, const Body& end, double timeout_s) {
    const std::unique_lock lock(mutex_, std::try_to_lock);  // another thread may wait for long
    if (!lock.owns_lock() || begun_ != nullptr || num_queued > 0 || !fault_.empty())
      return Begun::kNot;
    Begun state = Begun::kNot;
    try {
      guarded(timeout_s, [&] {
        begun_ = begin(*comm_);
        if (begun_ == nullptr) return;
        state = Begun::kUnderWay;
        if (!begun_->wait_briefly()) return;
        finish_begun();
        end(*comm_);
        state = Begun::kDone;
      });
    } catch (const c10::DistBackendError&) {
      state = Begun::kNot;  // the call that follows throws the same
    }
    if (state == Begun::kUnderWay) ++num_queued;
    return state;
  }

  std::atomic<int> num_queued = 0;  ///< calls that the thread has not run yet

 private:
  template <typename Action>
  void guarded(double timeout_s, const Action& action) {
    if (!fault_.empty()) fail(fault_);
    try {
      // Results are written whether or not a tensor requires a gradient or was made in this mode.
      const c10::InferenceMode no_autograd;
      comm_->set_timeout(timeout_s);
      action();
    } catch (const Error& error) {
      fault_ = text_of(error);
      fail(fault_);
    }
  }

  void finish_begun() {
    if (const auto begun = std::exchange(begun_, nullptr)) begun->wait();
  }

  const std::unique_ptr<dist::Communicator> comm_;
  std::unique_ptr<dist::Work> begun_;  ///< the first stage of a call; null: none
  std::mutex mutex_;
  std::string fault_;  ///< of the first call that failed
};

/// Counts a call as run when the scope ends, before anyone who waits for the call continues.
struct Leaving {
  Native& native;
  const bool was_queued;
  ~Leaving() {
    if (was_queued) --native.num_queued;
  }
};

/// A collective that a thread runs, or the caller.
class OneCall final : public c10d::Work {
 public:
  OneCall(const Name& name, Tensors results, std::function<void()> body)
      : Work(-1, name.type, name.title, std::optional(name.inputs)),
        results_(std::move(results)),
        body_(std::move(body)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {}

  void run() {
    std::exception_ptr fault;
    try {
      body_();
    } catch (...) {
      fault = std::current_exception();
    }
    body_ = nullptr;  // releases its tensors
    fault ? future_->setError(fault) : future_->markCompleted(c10::IValue(results_));
    finish(fault);
  }

  /// Fails the call if it never ran, so that nothing waits for it.
  void abandon() {
    if (body_ == nullptr) return;
    body_ = [] { fail("the process group was destroyed before this call began"); };
    run();
  }

  Tensors result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const Tensors results_;
  std::function<void()> body_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// True if calls may be native. Ranks must agree on that, so it depends on nothing in which the
/// tensors of a call may differ, such as strides.
bool is_plain(const at::Tensor& values) {
  return values.device().is_cpu() && values.layout() == at::kStrided && !values.is_conj() &&
         !values.is_neg();
}

bool are_plain(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), is_plain);
}

/// True if sums of such values are native (dist/communicator.h).
bool has_native_type(const at::Tensor& values) {
  constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16,
                                       at::kHalf,  at::kLong,   at::kByte};
  return std::find(std::begin(kTypes), std::end(kTypes), values.scalar_type()) != std::end(kTypes);
}

/// Calls `change` with the values, contiguous, and copies the result back if they are not.
template <typename Change>
void change_contiguous(const at::Tensor& values, const Change& change) {
  const at::Tensor run = values.detach().contiguous();
  change(run);
  if (!values.is_contiguous()) values.detach().copy_(run);
}

/// A tensor of the same memory, whose release touches nothing of Python: neither the user's tensor
/// nor memory that numpy or bytes own. A thread that releases those waits for the interpreter's
/// lock, and aborts the process if the interpreter ends meanwhile.
at::Tensor own(const at::Tensor& values) {
  used_tensors().release();
  if (!is_plain(values) || values.is_quantized()) return values;
  return at::from_blob(
      values.data_ptr(), values.sizes(), values.strides(),
      [kept = values](void*) mutable { used_tensors().add(std::move(kept)); }, values.options());
}

template <typename T>
std::vector<T> own(const std::vector<T>& all) {
  std::vector<T> owned;
  owned.reserve(all.size());
  for (const T& one : all) owned.push_back(own(one));
  return owned;
}

/// Bytes of a contiguous tensor, for collectives that only copy.
at::Tensor bytes_of(const at::Tensor& values) {
  return at::from_blob(values.data_ptr(), {static_cast<int64_t>(values.nbytes())}, at::kByte);
}

bool is_whole_mean(const at::Tensor& values, const c10d::ReduceOp& op) {
  return op.op_ == c10d::ReduceOp::AVG && at::isIntegralType(values.scalar_type(), false);
}

/// Whole numbers whose mean is wanted, wide enough for their sum; other values as they are.
at::Tensor widened(const at::Tensor& values, const c10d::ReduceOp& op) {
  return is_whole_mean(values, op) ? values.to(at::kLong) : values;
}

std::optional<dist::ReduceOp> native_op(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG:
      return dist::ReduceOp::kSum;
    case c10d::ReduceOp::MIN:
      return dist::ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return dist::ReduceOp::kMax;
    default:
      return std::nullopt;
  }
}

/// Backend whose collectives of plain CPU tensors go through shared memory, and between the hosts
/// of several ranks over connections of their own. All others are gloo's.
///
/// Native calls run in order on a thread of the backend, or at once: if the caller waits for them,
/// or if they are small and the other ranks have begun them.
/// Those of gloo run on gloo's threads; the two do not wait for each other.
class LockstepBackend final : public c10d::Backend {
 public:
  LockstepBackend(c10::intrusive_ptr<c10d::Backend> gloo, std::shared_ptr<Native> native,
                  std::chrono::milliseconds timeout)
      : Backend(gloo->getRank(), gloo->getSize()),
        gloo_(std::move(gloo)),
        native_(std::move(native)),
        timeout_(timeout),
        queue_(std::make_unique<TaskQueue>(
            TaskQueue::Options{.thread_name = "lockstep",
                               .capacity_bytes = std::numeric_limits<int64_t>::max(),
                               .patience = timeout})) {}

  ~LockstepBackend() override {
    // A forked child has no such thread to wait for.
    if (is_forked()) static_cast<void>(queue_.release());
  }

  const std::string getBackendName() const override { return "lockstep"; }
  void setTimeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
    gloo_->setTimeout(timeout);
  }

  WorkPtr allreduce(Tensors& users_tensors, const c10d::AllreduceOptions& options) override {
    Tensors tensors = own(users_tensors);
    const Name name{OpType::ALLREDUCE, "lockstep:all_reduce", tensors};
    if (tensors.size() != 1 || !reduces(tensors[0], options.reduceOp))
      return delegate(name, gloo_->allreduce(tensors, options));
    const at::Tensor& values = tensors[0];
    const c10d::ReduceOp op = options.reduceOp;
    Brief brief;
    if (options.asyncOp && values.is_contiguous() && !is_whole_mean(values, op)) {
      const at::Tensor flat = values.detach().view({-1});
      brief.begin = [flat, op](auto& comm) { return comm.begin_all_reduce(flat, *native_op(op)); };
      brief.end = [flat, op](auto& comm) { finish(comm, flat, flat, op); };
    }
    return start(
        name, tensors, options,
        [values, op](dist::Communicator& comm) { all_reduce(comm, values, op); }, brief);
  }

  WorkPtr allreduce_coalesced(Tensors& users_tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    Tensors tensors = own(users_tensors);
    const Name name{OpType::ALLREDUCE_COALESCED, "lockstep:all_reduce", tensors};
    const bool is_native =
        !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [&](const auto& values) {
          return reduces(values, options.reduceOp);
        });
    if (!is_native) return delegate(name, gloo_->allreduce_coalesced(tensors, options));
    return start(name, tensors, options,
                 [tensors, op = options.reduceOp](dist::Communicator& comm) {
                   for (const at::Tensor& values : tensors) all_reduce(comm, values, op);
                 });
  }

  WorkPtr reduce(Tensors& users_tensors, const c10d::ReduceOptions& options) override {
    Tensors tensors = own(users_tensors);
    const Name name{OpType::REDUCE, "lockstep:reduce", tensors};
    if (tensors.size() != 1 || !reduces(tensors[0], options.reduceOp))
      return delegate(name, gloo_->reduce(tensors, options));
    const bool is_root = getRank() == options.rootRank;
    return start(
        name, tensors, options,
        [values = is_root ? tensors[0] : tensors[0].detach().clone(),
         op = options.reduceOp](dist::Communicator& comm) { all_reduce(comm, values, op); });
  }

  WorkPtr broadcast(Tensors& users_tensors, const c10d::BroadcastOptions& options) override {
    Tensors tensors = own(users_tensors);
    const Name name{OpType::BROADCAST, "lockstep:broadcast", tensors};
    if (tensors.size() != 1 || !copies(tensors))
      return delegate(name, gloo_->broadcast(tensors, options));
    return start(
        name, tensors, options,
        [values = tensors[0], root = static_cast<int>(options.rootRank)](dist::Communicator& comm) {
          change_contiguous(values,
                            [&](const at::Tensor& run) { comm.broadcast(bytes_of(run), root); });
        });
  }

  WorkPtr allgather(std::vector<Tensors>& users_outputs, Tensors& users_inputs,
                    const c10d::AllgatherOptions& options) override {
    std::vector<Tensors> outputs = own(users_outputs);
    Tensors inputs = own(users_inputs);
    const Name name{OpType::ALLGATHER, "lockstep:all_gather", inputs};
    if (inputs.size() != 1 || outputs.size() != 1 || !copies(inputs) ||
        !have_shape_of(outputs[0], inputs[0]))
      return delegate(name, gloo_->allgather(outputs, inputs, options));
    return start(
        name, outputs[0], options, [all_N = outputs[0], own = inputs[0]](dist::Communicator& comm) {
          const at::Tensor whole =
              at::empty({int64_t{comm.world_size()}, own.numel()}, own.options());
          gather_into(comm, whole, own);
          for (size_t r = 0; r < all_N.size(); ++r)
            all_N[r].detach().copy_(whole.select(0, static_cast<int64_t>(r)).view(own.sizes()));
        });
  }

  WorkPtr _allgather_base(at::Tensor& users_output, at::Tensor& users_input,
                          const c10d::AllgatherOptions& options) override {
    at::Tensor output = own(users_output);
    at::Tensor input = own(users_input);
    const Name name{OpType::_ALLGATHER_BASE, "lockstep:_all_gather_base", {input}};
    if (!copies({output, input}) || !is_whole_of(output, input))
      return delegate(name, gloo_->_allgather_base(output, input, options));
    return start(name, {output}, options,
                 [output, input](dist::Communicator& comm) { gather_into(comm, output, input); });
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& users_outputs, Tensors& users_inputs,
                                          const c10d::AllgatherOptions& options) override {
    Tensors outputs = own(users_outputs);
    Tensors inputs = own(users_inputs);
    const Name name{OpType::COALESCED, "lockstep:all_gather", inputs};
    bool is_native = copies(outputs) && copies(inputs) && outputs.size() == inputs.size();
    for (size_t i = 0; is_native && i < inputs.size(); ++i)
      is_native = is_whole_of(outputs[i], inputs[i]);
    if (!is_native)
      return delegate(name, gloo_->allgather_into_tensor_coalesced(outputs, inputs, options));
    return start(name, outputs, options, [outputs, inputs](dist::Communicator& comm) {
      for (size_t i = 0; i < inputs.size(); ++i) gather_into(comm, outputs[i], inputs[i]);
    });
  }

  WorkPtr reduce_scatter(Tensors& users_outputs, std::vector<Tensors>& users_inputs,
                         const c10d::ReduceScatterOptions& options) override {
    Tensors outputs = own(users_outputs);
    std::vector<Tensors> inputs = own(users_inputs);
    const Name name{OpType::REDUCE_SCATTER, "lockstep:reduce_scatter",
                    inputs.empty() ? outputs : inputs[0]};
    if (outputs.size() != 1 || inputs.size() != 1 || !scatters(outputs[0], options.reduceOp) ||
        !have_shape_of(inputs[0], outputs[0]))
      return delegate(name, gloo_->reduce_scatter(outputs, inputs, options));
    return start(
        name, outputs, options,
        [out = outputs[0], pieces_N = inputs[0], op = options.reduceOp](dist::Communicator& comm) {
          Tensors flat_N;
          for (const at::Tensor& piece : pieces_N) flat_N.push_back(piece.flatten());
          reduce_scatter_sum(comm, out, at::cat(flat_N), op);
        });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& users_output, at::Tensor& users_input,
                               const c10d::ReduceScatterOptions& options) override {
    at::Tensor output = own(users_output);
    at::Tensor input = own(users_input);
    const Name name{OpType::_REDUCE_SCATTER_BASE, "lockstep:_reduce_scatter_base", {input}};
    if (!scatters(output, options.reduceOp) || !copies({input}) || !is_whole_of(input, output))
      return delegate(name, gloo_->_reduce_scatter_base(output, input, options));
    return start(name, {output}, options,
                 [output, input, op = options.reduceOp](dist::Communicator& comm) {
                   reduce_scatter_sum(comm, output, input, op);
                 });
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& users_outputs, Tensors& users_inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    Tensors outputs = own(users_outputs);
    Tensors inputs = own(users_inputs);
    const Name name{OpType::COALESCED, "lockstep:reduce_scatter", inputs};
    bool is_native = copies(inputs) && outputs.size() == inputs.size();
    for (size_t i = 0; is_native && i < inputs.size(); ++i)
      is_native = scatters(outputs[i], options.reduceOp) && is_whole_of(inputs[i], outputs[i]);
    if (!is_native)
      return delegate(name, gloo_->reduce_scatter_tensor_coalesced(outputs, inputs, options));
    return start(name, outputs, options,
                 [outputs, inputs, op = options.reduceOp](dist::Communicator& comm) {
                   for (size_t i = 0; i < inputs.size(); ++i)
                     reduce_scatter_sum(comm, outputs[i], inputs[i], op);
                 });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    const Name name{OpType::BARRIER, "lockstep:barrier", {}};
    if (native_ == nullptr) return delegate(name, gloo_->barrier(options));
    return start(name, {}, options, [](dist::Communicator& comm) { comm.barrier(); });
  }

  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const Name name{OpType::_ALLREDUCE_SPARSE, "lockstep:all_reduce", tensors};
    return delegate(name, gloo_->allreduce(tensors, options));  // gloo's takes both layouts
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& users_outputs, Tensors& users_inputs,
                              const c10d::AllgatherOptions& options) override {
    std::vector<Tensors> outputs = own(users_outputs);
    Tensors inputs = own(users_inputs);
    const Name name{OpType::ALLGATHER_COALESCED, "lockstep:all_gather", inputs};
    return delegate(name, gloo_->allgather_coalesced(outputs, inputs, options));
  }
  WorkPtr gather(std::vector<Tensors>& users_outputs, Tensors& users_inputs,
                 const c10d::GatherOptions& options) override {
    std::vector<Tensors> outputs = own(users_outputs);
    Tensors inputs = own(users_inputs);
    const Name name{OpType::GATHER, "lockstep:gather", inputs};
    return delegate(name, gloo_->gather(outputs, inputs, options));
  }
  WorkPtr scatter(Tensors& users_outputs, std::vector<Tensors>& users_inputs,
                  const c10d::ScatterOptions& options) override {
    Tensors outputs = own(users_outputs);
    std::vector<Tensors> inputs = own(users_inputs);
    const Name name{OpType::SCATTER, "lockstep:scatter", inputs.empty() ? Tensors() : inputs[0]};
    return delegate(name, gloo_->scatter(outputs, inputs, options));
  }
  WorkPtr alltoall_base(at::Tensor& users_output, at::Tensor& users_input,
                        std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
                        const c10d::AllToAllOptions& options) override {
    at::Tensor output = own(users_output);
    at::Tensor input = own(users_input);
    const Name name{OpType::ALLTOALL_BASE, "lockstep:all_to_all", {input}};
    return delegate(name, gloo_->alltoall_base(output, input, output_sizes, input_sizes, options));
  }
  WorkPtr alltoall(Tensors& users_outputs, Tensors& users_inputs,
                   const c10d::AllToAllOptions& options) override {
    Tensors outputs = own(users_outputs);
    Tensors inputs = own(users_inputs);
    const Name name{OpType::ALLTOALL, "lockstep:all_to_all", inputs};
    return delegate(name, gloo_->alltoall(outputs, inputs, options));
  }
  WorkPtr send(Tensors& users_tensors, int to, int tag) override {
    Tensors tensors = own(users_tensors);
    const Name name{OpType::SEND, "lockstep:send", tensors};
    return delegate(name, gloo_->send(tensors, to, tag));
  }
  WorkPtr recv(Tensors& users_tensors, int from, int tag) override {
    Tensors tensors = own(users_tensors);
    const Name name{OpType::RECV, "lockstep:recv", tensors};
    return delegate(name, gloo_->recv(tensors, from, tag));
  }
  WorkPtr recvAnysource(Tensors& users_tensors, int tag) override {
    Tensors tensors = own(users_tensors);
    const Name name{OpType::RECVANYSOURCE, "lockstep:recvAnySource", tensors};
    return delegate(name, gloo_->recvAnysource(tensors, tag));
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all) override {
    gloo_->monitoredBarrier(options, wait_all);
  }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

 private:
  /// Divides the sum of a mean and copies it to `out` if it is elsewhere. Whole numbers are rounded
  /// towards zero, as by NCCL.
  static void finish(const dist::Communicator& comm, const at::Tensor& sum, const at::Tensor& out,
                     const c10d::ReduceOp& op) {
    if (is_whole_mean(sum, op))
      sum.div_(comm.world_size(), "trunc");
    else if (op.op_ == c10d::ReduceOp::AVG)
      sum.div_(comm.world_size());
    if (!sum.is_same(out)) out.copy_(sum);
  }

  static void all_reduce(dist::Communicator& comm, const at::Tensor& values,
                         const c10d::ReduceOp& op) {
    change_contiguous(values, [&](const at::Tensor& run) {
      const at::Tensor flat = run.view({-1}), sum = widened(flat, op);
      comm.all_reduce(sum, *native_op(op))->wait();
      finish(comm, sum, flat, op);
    });
  }

  static void gather_into(dist::Communicator& comm, const at::Tensor& whole,
                          const at::Tensor& own) {
    change_contiguous(whole, [&](const at::Tensor& run) {
      comm.all_gather(bytes_of(run), bytes_of(own.contiguous()))->wait();
    });
  }

  static void reduce_scatter_sum(dist::Communicator& comm, const at::Tensor& out,
                                 const at::Tensor& values, const c10d::ReduceOp& op) {
    change_contiguous(out, [&](const at::Tensor& run) {
      const at::Tensor flat = run.view({-1}), sum = widened(flat, op);
      comm.reduce_scatter(sum, widened(values.detach().contiguous().view({-1}), op))->wait();
      finish(comm, sum, flat, op);
    });
  }

  bool copies(const Tensors& tensors) const { return native_ != nullptr && are_plain(tensors); }
  bool reduces(const at::Tensor& values, const c10d::ReduceOp& op) const {
    return copies({values}) && (has_native_type(values) || is_whole_mean(values, op)) &&
           native_op(op);
  }
  bool scatters(const at::Tensor& out, const c10d::ReduceOp& op) const {
    return reduces(out, op) && native_op(op) == dist::ReduceOp::kSum;
  }
  bool have_shape_of(const Tensors& pieces_N, const at::Tensor& piece) const {
    return static_cast<int>(pieces_N.size()) == getSize() && are_plain(pieces_N) &&
           std::all_of(pieces_N.begin(), pieces_N.end(), [&](const at::Tensor& other) {
             return other.sizes() == piece.sizes() && other.scalar_type() == piece.scalar_type();
           });
  }
  bool is_whole_of(const at::Tensor& whole, const at::Tensor& piece) const {
    return whole.numel() == piece.numel() * getSize() && whole.scalar_type() == piece.scalar_type();
  }

  static WorkPtr delegate(const Name& name, WorkPtr call) {
    return c10::make_intrusive<DelegatedCall>(name, std::move(call));
  }

  bool is_forked() const { return getpid() != pid_; }

  /// A call in two parts, of which the first waits for no rank. Empty: there is no such form.
  struct Brief {
    Begin begin;
    Body end;
  };

  /// Runs the body at once if the caller waits for it and no earlier call is queued, else later. A
  /// brief call is begun at once, and ended at once if the other ranks have begun it too: the
  /// thread of this backend would have to wake first.
  template <typename Options>
  WorkPtr start(const Name& name, const Tensors& results, const Options& options, Body body,
                const Brief& brief = {}) {
    if (is_forked())
      fail("this process was forked from a rank (process " + std::to_string(pid_) +
           "): only the rank may use its process groups");
    const auto timeout = options.timeout.count() > 0 ? options.timeout : timeout_.load();
    const double timeout_s = std::chrono::duration<double>(timeout).count();
    auto begun = Native::Begun::kNot;
    if (brief.begin) begun = native_->begin(brief.begin, brief.end, timeout_s);
    if (begun == Native::Begun::kUnderWay) body = brief.end;
    const bool is_done = begun == Native::Begun::kDone;
    const bool is_queued = !is_done && (options.asyncOp || native_->num_queued > 0);
    if (is_queued && begun == Native::Begun::kNot) ++native_->num_queued;
    auto call = c10::make_intrusive<OneCall>(
        name, results, [native = native_, timeout_s, is_done, is_queued, body = std::move(body)] {
          if (is_done) return;
          const Leaving leaving{*native, is_queued};
          native->call(body, timeout_s);
        });
    if (is_queued) {
      enqueue(call, timeout);
    } else {
      call->run();
      used_tensors().release();
    }
    return call;
  }

  void enqueue(const c10::intrusive_ptr<OneCall>& call, std::chrono::milliseconds timeout) {
    // Released with the task, also if that never ran.
    const std::shared_ptr<void> end(nullptr, [call](void*) { call->abandon(); });
    if (queue_->push([call, end] { call->run(); }, 1)) return;
    queue_->drain(timeout);  // the system gives no thread
    call->run();
  }

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const std::shared_ptr<Native> native_;  ///< null: all calls are gloo's
  std::atomic<std::chrono::milliseconds> timeout_;
  const pid_t pid_ = getpid();
  std::unique_ptr<TaskQueue> queue_;
};

/// Creates the process group of ranks that the backend gloo of `gloo` connects. Collective.
GroupPtr make_group(const GroupPtr& gloo, at::IntArrayRef world_ranks_N, double timeout_s) {
  auto inner = gloo->getBackend(at::kCPU);
  std::shared_ptr<Native> native;
  if (inner->getSize() > 1)
    if (auto comm = dist::cpu::make_communicator(
            std::make_unique<GlooRanks>(inner, world_ranks_N.vec()),
            // gloo's ring sends as many bytes between hosts of one rank each.
            {.timeout_s = timeout_s, .messages_alone = false}))
      native = std::make_shared<Native>(std::move(comm));
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(gloo->getStore(), inner->getRank(), inner->getSize());
  using Type = c10d::ProcessGroup::BackendType;
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(1e3 * timeout_s));
  group->setBackend(at::kCPU, Type::CUSTOM,
                    c10::make_intrusive<LockstepBackend>(inner, std::move(native), timeout));
  group->setDefaultBackend(Type::CUSTOM);
  return group;
}

}  // namespace
}  // namespace lockstep::pytorch

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "make_group(__torch__.torch.classes.c10d.ProcessGroup gloo, int[] world_ranks, float "
      "timeout_s)"
      " -> __torch__.torch.classes.c10d.ProcessGroup",
      TORCH_FN(lockstep::pytorch::make_group));
}
