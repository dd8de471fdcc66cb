#include "tests/support/fake_gpu.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "dist/reduce_in_rank_order.h"

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

/// One rank's part of a collective.
struct Call {
  std::string name;
  at::ScalarType dtype = at::kByte;
  int argument = 0;  ///< operation or root
  std::vector<std::byte> input = {};

  bool matches(const Call& other) const {
    return name == other.name && dtype == other.dtype && argument == other.argument &&
           input.size() == other.input.size();
  }
};

struct Collective {
  std::vector<std::optional<Call>> call_N;
  std::vector<std::vector<std::byte>> output_N;  ///< empty until all ranks called, alike
};

struct Comm;

/// What the ranks of one communicator share; guarded by the cluster's mutex.
struct Room {
  explicit Room(int num_ranks) : comm_N(num_ranks), begun_N(num_ranks), split_N(num_ranks) {}
  struct Split {
    int color = 0, key = 0;
    CommHandle* part = nullptr;
  };
  int num_ranks() const { return static_cast<int>(comm_N.size()); }
  std::vector<Comm*> comm_N;
  std::vector<bool> begun_N;
  std::map<int64_t, Collective> collectives;
  std::vector<std::optional<Split>> split_N;
};

struct Comm {
  std::shared_ptr<Room> room;
  int rank = 0;
  int owner = 0;  ///< rank in the cluster
  int64_t num_enqueued = 0;
  Clock::time_point busy_until{};
  std::function<void()> launch;  ///< of the call in progress
  bool splits = false, never_ends = false;
  std::string failure;
  bool is_aborted = false, is_freed = false;
  std::atomic<int> num_callers = 0;
};

struct EventState {
  bool is_reached = false;
};

std::vector<std::byte> bytes_of(const at::Tensor& values) {
  const auto* first = static_cast<const std::byte*>(values.const_data_ptr());
  return {first, first + values.nbytes()};
}

}  // namespace

struct FakeCluster::Shared {
  Shared(int num, const FakePlan& plan_) : num_ranks(num), plan(plan_), num_collectives_N(num) {}

  const int num_ranks;
  const FakePlan plan;
  mutable std::mutex mutex;  ///< of all below
  std::condition_variable changed;
  bool is_released = false;
  std::vector<int64_t> num_collectives_N;
  std::vector<std::string> breaches;
  std::map<std::string, std::shared_ptr<Room>> room_by_id;
  std::vector<std::unique_ptr<Comm>> comms;
  int num_ids = 0;

  bool hits(int rank, int64_t collective, FakeFault fault) const {
    return plan.fault == fault && plan.victim == rank && plan.at_collective == collective;
  }

  Comm* make_comm(const std::shared_ptr<Room>& room, int rank, int owner) {
    comms.push_back(std::make_unique<Comm>());
    Comm* comm = comms.back().get();
    comm->room = room;
    comm->rank = rank;
    comm->owner = owner;
    room->comm_N[rank] = comm;
    return comm;
  }

  /// The rank's connections close: its peers see it, and what it had running ends.
  void leave(Comm* comm, bool peers_see) {
    comm->is_aborted = true;
    for (Comm* peer : comm->room->comm_N)
      if (peers_see && peer != nullptr && peer != comm && peer->failure.empty())
        peer->failure = "remote process exited or there was a network error";
    changed.notify_all();
  }

  /// The collective, if all ranks have called it alike.
  void complete(Room& room, Collective& now) {
    std::vector<const std::byte*> inputs;
    for (const auto& call : now.call_N) {
      if (!call || !call->matches(*now.call_N[0])) return;
      inputs.push_back(call->input.data());
    }
    const Call& call = *now.call_N[0];
    const int64_t item_bytes = static_cast<int64_t>(c10::elementSize(call.dtype));
    const int64_t num_bytes = static_cast<int64_t>(call.input.size());
    const int64_t piece_bytes = num_bytes / room.num_ranks();
    now.output_N.resize(room.num_ranks());
    for (int rank = 0; rank < room.num_ranks(); ++rank) {
      std::vector<std::byte>& out = now.output_N[rank];
      const auto reduce = [&](int64_t offset, int64_t size) {
        out.resize(size);
        std::vector<const std::byte*> parts;
        for (const std::byte* input : inputs) parts.push_back(input + offset);
        dist::reduce_in_rank_order(parts, out.data(), size / item_bytes, call.dtype,
                                   static_cast<ReduceOp>(call.argument));
      };
      if (call.name == "all_reduce") reduce(0, num_bytes);
      if (call.name == "reduce_scatter") reduce(rank * piece_bytes, piece_bytes);
      if (call.name == "broadcast") out = now.call_N[call.argument]->input;
      for (int peer = 0; peer < room.num_ranks(); ++peer) {
        const auto& input = now.call_N[peer]->input;
        if (call.name == "all_gather") out.insert(out.end(), input.begin(), input.end());
        if (call.name == "all_to_all")
          out.insert(out.end(), input.begin() + rank * piece_bytes,
                     input.begin() + (rank + 1) * piece_bytes);
      }
    }
    changed.notify_all();
  }

  /// On the stream's thread: one rank's part of the collective, from its begin to its end.
  void run(Comm* comm, int64_t number, int64_t place, Call call, const at::Tensor& out) {
    if (plan.fault == FakeFault::kLate)
      std::this_thread::sleep_for(std::chrono::milliseconds((comm->owner * 7 + place * 5) % 11));
    std::unique_lock lock(mutex);
    Room& room = *comm->room;
    Collective& mine = room.collectives[place];
    mine.call_N.resize(room.num_ranks());
    const auto has_ended = [&] { return comm->is_aborted || is_released; };
    if (hits(comm->owner, number, FakeFault::kAsyncError)) {
      comm->failure = "unhandled system error";
      changed.wait(lock, has_ended);
    } else if (hits(comm->owner, number, FakeFault::kHang)) {
      changed.wait(lock, has_ended);
    } else {
      call.input = call.input.empty() ? bytes_of(out) : std::move(call.input);
      mine.call_N[comm->rank] = std::move(call);
      complete(room, mine);
      changed.wait(lock, [&] { return !mine.output_N.empty() || has_ended(); });
    }
    auto* place_of_out = static_cast<std::byte*>(out.mutable_data_ptr());
    if (mine.output_N.empty())
      std::memset(place_of_out, 0xFF, out.nbytes());
    else
      std::memcpy(place_of_out, mine.output_N[comm->rank].data(), out.nbytes());
  }

  /// All have begun: each gets its part.
  void complete_split(Room& room) {
    for (const auto& split : room.split_N)
      if (!split) return;
    std::map<int, std::vector<int>> ranks_by_color;
    for (int rank = 0; rank < room.num_ranks(); ++rank)
      ranks_by_color[room.split_N[rank]->color].push_back(rank);
    for (auto& [color, ranks] : ranks_by_color) {
      std::stable_sort(ranks.begin(), ranks.end(),
                       [&](int a, int b) { return room.split_N[a]->key < room.split_N[b]->key; });
      const auto part = std::make_shared<Room>(static_cast<int>(ranks.size()));
      for (size_t i = 0; i < ranks.size(); ++i) {
        *room.split_N[ranks[i]]->part =
            make_comm(part, static_cast<int>(i), room.comm_N[ranks[i]]->owner);
        part->begun_N[i] = true;
      }
    }
    for (int rank = 0; rank < room.num_ranks(); ++rank) {
      room.split_N[rank].reset();
      room.comm_N[rank]->splits = false;
    }
  }
};

namespace {

using Shared = FakeCluster::Shared;

class FakeGpu final : public GpuCalls {
 public:
  FakeGpu(std::shared_ptr<Shared> shared, int rank)
      : shared_(std::move(shared)), rank_(rank), index_(rank + 1), stream_([this] { run(); }) {}

  ~FakeGpu() override {
    {
      const std::lock_guard lock(mutex_);
      must_end_ = true;
    }
    wake_.notify_all();
    if (stream_.get_id() == std::this_thread::get_id())
      stream_.detach();
    else
      stream_.join();
  }

  at::Device device() const override { return at::kCPU; }
  void require_usable() override {}

  std::shared_ptr<void> use_device() override {
    const int before = std::exchange(current_device, index_);
    return {nullptr, [before](void*) { current_device = before; }};
  }

  Stream callers_stream() override { return require_current("callers_stream"), nullptr; }
  Stream own_stream() override { return this; }
  void enqueue_kernels(std::function<void()> part) override {
    require_current("enqueue_kernels");
    enqueue(std::move(part));
  }
  void keep_until_done(const at::Tensor& tensor) override {
    enqueue([tensor] {});
  }

  EventHandle record(Stream stream) override {
    require_current("record");
    auto event = std::make_shared<EventState>();
    if (stream == nullptr)
      event->is_reached = true;  // the caller's kernels ran when they were launched
    else
      enqueue([event, shared = shared_] {
        const std::lock_guard lock(shared->mutex);
        event->is_reached = true;
        shared->changed.notify_all();
      });
    return new std::shared_ptr<EventState>(event);
  }

  void hold(Stream stream, EventHandle handle) override {
    require_current("hold");
    const auto event = *static_cast<std::shared_ptr<EventState>*>(handle);
    const auto wait = [event, shared = shared_] {
      std::unique_lock lock(shared->mutex);
      shared->changed.wait(lock, [&] { return event->is_reached || shared->is_released; });
    };
    if (stream == nullptr)
      wait();
    else
      enqueue(wait);
  }

  bool is_reached(EventHandle handle) override {
    require_current("is_reached");
    const std::lock_guard lock(shared_->mutex);
    const FakePlan& plan = shared_->plan;
    if (plan.fault == FakeFault::kCudaError && plan.victim == rank_ &&
        shared_->num_collectives_N[rank_] > plan.at_collective)
      throw Error(ExitCode::kUnavailable, "dist.nccl", "cudaEventQuery: device-side assert");
    return (*static_cast<std::shared_ptr<EventState>*>(handle))->is_reached;
  }
  void destroy(EventHandle handle) override {
    delete static_cast<std::shared_ptr<EventState>*>(handle);
  }

  std::string make_unique_id() override {
    const std::lock_guard lock(shared_->mutex);
    return fmt::format("room {}", shared_->num_ids++);
  }

  Result init(const std::string& id, int num_ranks, int rank, CommHandle* handle) override {
    require_current("init");
    const std::lock_guard lock(shared_->mutex);
    std::shared_ptr<Room>& room = shared_->room_by_id[id];
    if (room == nullptr) room = std::make_shared<Room>(num_ranks);
    Comm* comm = shared_->make_comm(room, rank, rank_);
    room->begun_N[rank] = !(shared_->plan.init_hangs && shared_->plan.victim == rank_);
    *handle = comm;
    return {Result::Kind::kInProgress};
  }

  Result split(CommHandle handle, int color, int key, CommHandle* part) override {
    const Use use(*this, handle, "split");
    const std::lock_guard lock(shared_->mutex);
    Room& room = *use.comm->room;
    use.comm->splits = true;
    room.split_N[use.comm->rank] = Room::Split{color, key, part};
    shared_->complete_split(room);
    return {Result::Kind::kInProgress};
  }

  int rank(CommHandle handle) override { return Use(*this, handle, "rank").comm->rank; }
  int num_ranks(CommHandle handle) override {
    return Use(*this, handle, "num_ranks").comm->room->num_ranks();
  }

  Result state(CommHandle handle) override {
    auto* comm = static_cast<Comm*>(handle);
    const std::lock_guard lock(shared_->mutex);
    if (comm->is_freed) shared_->breaches.push_back("state() of a handle that is gone");
    if (!comm->failure.empty()) return {Result::Kind::kFailed, comm->failure};
    for (const bool has_begun : comm->room->begun_N)
      if (!has_begun) return {Result::Kind::kInProgress};
    if (comm->splits || comm->never_ends || Clock::now() < comm->busy_until)
      return {Result::Kind::kInProgress};
    // Whoever asks next must find it on the stream.
    if (const auto launch = std::exchange(comm->launch, nullptr)) launch();
    return {Result::Kind::kDone};
  }

  Result finalize(CommHandle handle) override {
    auto* comm = static_cast<Comm*>(handle);
    const std::lock_guard lock(shared_->mutex);
    comm->never_ends = shared_->plan.finalize_hangs;
    comm->busy_until = Clock::now() + kCallTime;
    return {Result::Kind::kInProgress};
  }
  Result destroy_comm(CommHandle handle) override {
    const std::lock_guard lock(shared_->mutex);
    free(static_cast<Comm*>(handle));
    return {};
  }
  Result abort(CommHandle handle) override {
    std::unique_lock lock(shared_->mutex);
    if (shared_->plan.abort_hangs)
      shared_->changed.wait(lock, [&] { return shared_->is_released; });
    auto* comm = static_cast<Comm*>(handle);
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
    Use(FakeGpu& gpu, CommHandle handle, const char* call) : comm(static_cast<Comm*>(handle)) {
      gpu.require_current(call);
      const std::lock_guard lock(gpu.shared_->mutex);
      if (comm->is_freed || comm->num_callers.fetch_add(1) > 0)
        gpu.shared_->breaches.push_back(fmt::format("{} with a handle in use or gone", call));
    }
    ~Use() { --comm->num_callers; }
    Comm* comm;
  };

  void require_current(const char* call) {
    if (current_device == index_) return;
    const std::lock_guard lock(shared_->mutex);
    shared_->breaches.push_back(
        fmt::format("rank {}: {} with device {} current", rank_, call, current_device));
  }

  void free(Comm* comm) {
    if (std::exchange(comm->is_freed, true))
      shared_->breaches.push_back("a handle was freed twice");
  }

  Result begin(CommHandle handle, Call call, const at::Tensor& out, const at::Tensor& in) {
    const Use use(*this, handle, call.name.c_str());
    Comm* comm = use.comm;
    std::unique_lock lock(shared_->mutex);
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
        Call with_input = call;
        if (in.defined()) with_input.input = bytes_of(in);
        shared->run(comm, number, place, std::move(with_input), out);
      });
    };
    return {Result::Kind::kInProgress};
  }

  void enqueue(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.notify_all();
  }

  void run() {
    const at::NoGradGuard no_grad;
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return must_end_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }

  const std::shared_ptr<Shared> shared_;
  const int rank_, index_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool must_end_ = false;
  std::thread stream_;
};

}  // namespace

FakeCluster::FakeCluster(int num_ranks, const FakePlan& plan)
    : shared_(std::make_shared<Shared>(num_ranks, plan)) {}

FakeCluster::~FakeCluster() { release(); }

std::shared_ptr<GpuCalls> FakeCluster::gpu(int rank) {
  return std::make_shared<FakeGpu>(shared_, rank);
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
