#include "tests/support/fake_gpu.h"

#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "base/error.h"
#include "dist/nccl/gpu_backend.h"
#include "tests/support/fake_gpu_shared.h"
#include "tests/support/fake_graph.h"

namespace lockstep::tests {

using dist::ReduceOp;
using dist::nccl::CommHandle;
using dist::nccl::EventHandle;
using dist::nccl::GpuCalls;
using dist::nccl::Result;
using dist::nccl::Stream;
using Clock = std::chrono::steady_clock;

namespace {

/// A thread begins with device 0, as with CUDA; the fake devices are 1, 2, ...
thread_local int current_device = 0;

constexpr auto kCallTime = std::chrono::microseconds(100);

using Shared = FakeCluster::Shared;

/// The threads of a kernel, one an item, in an order of their own.
template <bool packs, typename T>
void run_threads(const DeviceMask& mask, const at::Tensor& items_E, const at::Tensor& packed_K) {
  const auto view = dist::nccl::view_of(mask);
  auto* const items = static_cast<T*>(items_E.mutable_data_ptr());
  auto* const packed = static_cast<T*>(packed_K.mutable_data_ptr());
  for (const int64_t first : {1, 0})
    for (int64_t item = first; item < mask.num_items; item += 2)
      if constexpr (packs)
        dist::nccl::pack_item<T>(view, item, items, packed);
      else
        dist::nccl::unpack_item<T>(view, item, packed, items);
}

template <bool packs>
void run_kernel(const DeviceMask& mask, const at::Tensor& items_E, const at::Tensor& packed_K) {
  switch (items_E.element_size()) {
    case 2:
      return run_threads<packs, uint16_t>(mask, items_E, packed_K);
    case 4:
      return run_threads<packs, uint32_t>(mask, items_E, packed_K);
    default:
      return run_threads<packs, uint64_t>(mask, items_E, packed_K);
  }
}

class FakeGpu final : public GpuCalls {
 public:
  FakeGpu(std::shared_ptr<Shared> shared, int rank, int place = 0)
      : shared_(std::move(shared)),
        rank_(rank),
        index_(rank + 1),
        place_(place),
        own_(shared_->plan.most_delay_us, shared_->plan.seed * 16 + 2 * rank + 1 + 8 * place) {}

  at::Device device() const override { return at::kCPU; }
  void require_usable() override {}

  std::shared_ptr<void> use_device() override {
    const int before = std::exchange(current_device, index_);
    return {nullptr, [before](void*) { current_device = before; }};
  }

  std::shared_ptr<DeviceGraph> make_graph() override { return std::make_shared<FakeGraph>(); }

  std::shared_ptr<GpuCalls> beside() override {
    require_current("beside");
    return std::make_shared<FakeGpu>(shared_, rank_, place_ + 1);
  }

  Stream callers_stream() override {
    require_current("callers_stream");
    return shared_->callers_N.empty() ? nullptr : shared_->callers_N[rank_].get();
  }
  Stream own_stream() override { return &own_; }
  void enqueue_kernels(std::function<void()> part) override {
    require_current("enqueue_kernels");
    enqueue(std::move(part));
  }
  void keep_until_done(const at::Tensor& tensor) override {
    enqueue([tensor] {});
  }

  EventHandle record(Stream stream) override {
    require_current("record");
    auto event = std::make_shared<FakeEvent>();
    if (stream == nullptr)
      event->is_reached = true;  // the caller's kernels ran when they were launched
    else
      static_cast<FakeStream*>(stream)->enqueue([event, shared = shared_] {
        const std::lock_guard lock(shared->mutex);
        event->is_reached = true;
        shared->changed.notify_all();
      });
    return new std::shared_ptr<FakeEvent>(event);
  }

  void hold(Stream stream, EventHandle handle) override {
    require_current("hold");
    const auto event = *static_cast<std::shared_ptr<FakeEvent>*>(handle);
    const auto wait = [event, shared = shared_] {
      std::unique_lock lock(shared->mutex);
      shared->changed.wait(lock, [&] { return event->is_reached || shared->is_released; });
    };
    if (stream == nullptr)
      wait();
    else
      static_cast<FakeStream*>(stream)->enqueue(wait);
  }

  bool is_reached(EventHandle handle) override {
    require_current("is_reached");
    const std::lock_guard lock(shared_->mutex);
    const FakePlan& plan = shared_->plan;
    const bool has_failed =
        plan.victim == rank_ && shared_->num_collectives_N[rank_] > plan.at_collective;
    if (has_failed && plan.fault == FakeFault::kCudaError)
      throw Error(ExitCode::kUnavailable, "dist.nccl", "cudaEventQuery: device-side assert");
    TORCH_CHECK(!has_failed || plan.fault != FakeFault::kTorchError ||
                    caller_ == std::this_thread::get_id(),
                "CUDA error: device-side assert");
    return (*static_cast<std::shared_ptr<FakeEvent>*>(handle))->is_reached;
  }
  void destroy(EventHandle handle) override {
    delete static_cast<std::shared_ptr<FakeEvent>*>(handle);
  }

  std::shared_ptr<std::byte> pin_memory(int64_t num_bytes) override {
    require_current("pin_memory");
    if (shared_->plan.refuses_pinned_memory)
      throw Error(ExitCode::kUnavailable, "dist.nccl", "cudaHostAlloc: out of memory");
    const std::shared_ptr<std::byte> memory(new std::byte[static_cast<size_t>(num_bytes)],
                                            [](std::byte* begin) { delete[] begin; });
    const std::lock_guard lock(shared_->mutex);
    shared_->pinned.push_back({memory, memory.get(), num_bytes});
    return memory;
  }

  void copy_to_host(std::byte* to, const std::byte* from, int64_t num_bytes,
                    const at::Tensor& owner) override {
    require_current("copy_to_host");
    enqueue([shared = shared_, to, from, num_bytes,
             original = owner.storage().getWeakStorageImpl()] {
      const auto still_there = original.lock();
      const auto room = shared->pinned_around(to, num_bytes);
      if (room != nullptr && still_there) {
        std::memcpy(to, from, static_cast<size_t>(num_bytes));
        return;
      }
      const std::lock_guard lock(shared->mutex);
      shared->breaches.push_back(room == nullptr ? "a copy into memory that is not pinned, or gone"
                                                 : "a copy of memory that was given to others");
    });
  }

  void pack_kept(const DeviceMask& mask, const at::Tensor& items_E,
                 const at::Tensor& packed_K) override {
    require_current("pack_kept");
    launch([mask, items_E, packed_K] { run_kernel</*packs=*/true>(mask, items_E, packed_K); });
  }
  void unpack_kept(const DeviceMask& mask, const at::Tensor& packed_K,
                   const at::Tensor& items_E) override {
    require_current("unpack_kept");
    launch([mask, items_E, packed_K] { run_kernel</*packs=*/false>(mask, items_E, packed_K); });
  }

  std::string make_unique_id() override {
    const std::lock_guard lock(shared_->mutex);
    return fmt::format("room {}", shared_->num_ids++);
  }

  Result init(const std::string& id, int num_ranks, int rank, CommHandle* handle) override {
    require_current("init");
    const std::lock_guard lock(shared_->mutex);
    std::shared_ptr<FakeRoom>& room = shared_->room_by_id[id];
    if (room == nullptr) room = std::make_shared<FakeRoom>(num_ranks);
    FakeComm* comm = shared_->make_comm(room, rank, rank_);
    room->begun_N[rank] = !(shared_->plan.init_hangs && shared_->plan.victim == rank_);
    *handle = comm;
    return {Result::Kind::kInProgress};
  }

  Result split(CommHandle handle, int color, int key, CommHandle* part) override {
    const Use use(*this, handle, "split");
    const std::lock_guard lock(shared_->mutex);
    FakeRoom& room = *use.comm->room;
    use.comm->splits = true;
    room.split_N[use.comm->rank] = FakeRoom::Split{color, key, part};
    shared_->complete_split(room);
    return {Result::Kind::kInProgress};
  }

  int rank(CommHandle handle) override { return Use(*this, handle, "rank").comm->rank; }
  int num_ranks(CommHandle handle) override {
    return Use(*this, handle, "num_ranks").comm->room->num_ranks();
  }

  Result state(CommHandle handle) override {
    auto* comm = static_cast<FakeComm*>(handle);
    const std::lock_guard lock(shared_->mutex);
    if (comm->is_freed) shared_->breaches.push_back("state() of a handle that is gone");
    if (!comm->failure.empty()) return {Result::Kind::kFailed, comm->failure};
    for (const bool has_begun : comm->room->begun_N)
      if (!has_begun) return {Result::Kind::kInProgress};
    if (comm->splits || comm->never_ends || Clock::now() < comm->busy_until)
      return {Result::Kind::kInProgress};
    // The next query must find it on the stream.
    if (const auto launch = std::exchange(comm->launch, nullptr)) launch();
    return {Result::Kind::kDone};
  }

  Result finalize(CommHandle handle) override {
    auto* comm = static_cast<FakeComm*>(handle);
    const std::lock_guard lock(shared_->mutex);
    comm->never_ends = shared_->plan.finalize_hangs;
    comm->busy_until = Clock::now() + kCallTime;
    return {Result::Kind::kInProgress};
  }
  Result destroy_comm(CommHandle handle) override {
    const std::lock_guard lock(shared_->mutex);
    free(static_cast<FakeComm*>(handle));
    return {};
  }
  Result abort(CommHandle handle) override {
    std::unique_lock lock(shared_->mutex);
    if (shared_->plan.abort_hangs)
      shared_->changed.wait(lock, [&] { return shared_->is_released; });
    auto* comm = static_cast<FakeComm*>(handle);
    if (!comm->is_aborted) shared_->leave(comm, /*peers_see=*/true);
    free(comm);
    return {};
  }

  Result all_reduce(CommHandle comm, const at::Tensor& values_K, ReduceOp op) override {
    return begin(comm, {"all_reduce", values_K.scalar_type(), static_cast<int>(op)}, values_K, {});
  }
  Result reduce_scatter(CommHandle comm, const at::Tensor& out_K,
                        const at::Tensor& values_NK) override {
    return begin(comm, {"reduce_scatter", out_K.scalar_type()}, out_K, values_NK);
  }
  Result all_gather(CommHandle comm, const at::Tensor& out_NK,
                    const at::Tensor& values_K) override {
    return begin(comm, {"all_gather", out_NK.scalar_type()}, out_NK, values_K);
  }
  Result broadcast(CommHandle comm, const at::Tensor& values_K, int root) override {
    return begin(comm, {"broadcast", values_K.scalar_type(), root}, values_K, {});
  }
  Result all_to_all(CommHandle comm, const at::Tensor& out_NK,
                    const at::Tensor& values_NK) override {
    return begin(comm, {"all_to_all", out_NK.scalar_type()}, out_NK, values_NK);
  }

 private:
  /// A call with a handle; two at a time, or one with a handle that is gone, are breaches.
  struct Use {
    Use(FakeGpu& gpu, CommHandle handle, const char* call) : comm(static_cast<FakeComm*>(handle)) {
      gpu.require_current(call);
      const std::lock_guard lock(gpu.shared_->mutex);
      if (comm->is_freed || comm->num_callers.fetch_add(1) > 0)
        gpu.shared_->breaches.push_back(fmt::format("{} with a handle in use or gone", call));
      if (Clock::now() < comm->busy_until)  // NCCL: invalid argument
        gpu.shared_->breaches.push_back(fmt::format("{} before the call before was taken", call));
    }
    ~Use() { --comm->num_callers; }
    FakeComm* comm;
  };

  void require_current(const char* call) {
    if (current_device == index_) return;
    const std::lock_guard lock(shared_->mutex);
    shared_->breaches.push_back(
        fmt::format("rank {}: {} with device {} current", rank_, call, current_device));
  }

  void free(FakeComm* comm) {
    if (std::exchange(comm->is_freed, true))
      shared_->breaches.push_back("a handle was freed twice");
  }

  Result begin(CommHandle handle, FakeCall call, const at::Tensor& out, const at::Tensor& in) {
    const Use use(*this, handle, call.name.c_str());
    FakeComm* comm = use.comm;
    std::unique_lock lock(shared_->mutex);
    caller_ = std::this_thread::get_id();
    const int64_t number = shared_->num_collectives_N[rank_]++;
    const auto hits = [&](FakeFault fault) { return shared_->hits(rank_, number, fault); };
    if (hits(FakeFault::kHostHang))
      shared_->changed.wait(lock, [&] { return shared_->is_released; });
    if (hits(FakeFault::kKill) || hits(FakeFault::kKillUnseen))
      for (const auto& own : shared_->comms)
        if (own->owner == rank_) shared_->leave(own.get(), hits(FakeFault::kKill));
    if (hits(FakeFault::kKill) || hits(FakeFault::kKillUnseen) || hits(FakeFault::kHostHang))
      throw Killed();
    if (hits(FakeFault::kRefusedCall)) return {Result::Kind::kFailed, "internal error"};
    comm->never_ends = hits(FakeFault::kCallNeverEnds);
    comm->busy_until = Clock::now() + kCallTime;
    comm->launch = [this, comm, number, call = std::move(call), out, in] {
      const int64_t place = comm->num_enqueued++;
      enqueue([shared = shared_, comm, number, place, call, out, in] {
        FakeCall with_input = call;
        if (in.defined()) with_input.input = bytes_of(in);
        shared->run(comm, number, place, std::move(with_input), out);
      });
    };
    return {Result::Kind::kInProgress};
  }

  /// Runs the kernel on the callers' stream.
  void launch(std::function<void()> kernel) {
    auto* const stream = static_cast<FakeStream*>(callers_stream());
    if (stream == nullptr)
      kernel();
    else
      stream->enqueue(std::move(kernel));
  }

  void enqueue(std::function<void()> job) { own_.enqueue(std::move(job)); }

  const std::shared_ptr<Shared> shared_;
  const int rank_, index_, place_;
  std::thread::id caller_;  // of the last collective; guarded by the cluster's mutex
  FakeStream own_;
};

}  // namespace

FakeCluster::FakeCluster(int num_ranks, const FakePlan& plan)
    : shared_(std::make_shared<Shared>(num_ranks, plan)) {}

FakeCluster::~FakeCluster() { release(); }

std::shared_ptr<GpuCalls> FakeCluster::gpu(int rank) {
  return std::make_shared<FakeGpu>(shared_, rank);
}

void FakeCluster::enqueue(int rank, std::function<void()> kernel) {
  shared_->callers_N.at(rank)->enqueue(std::move(kernel));
}

void FakeCluster::release() {
  const std::lock_guard lock(shared_->mutex);
  shared_->is_released = true;
  shared_->changed.notify_all();
}

int64_t FakeCluster::num_collectives(int rank) const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->num_collectives_N.at(rank);
}

std::vector<std::string> FakeCluster::breaches() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->breaches;
}

}  // namespace lockstep::tests
