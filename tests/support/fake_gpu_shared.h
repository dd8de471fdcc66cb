#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tests/support/fake_gpu.h"

namespace lockstep::tests {

/// One rank's part of a collective.
struct FakeCall {
  std::string name;
  at::ScalarType dtype = at::kByte;
  int argument = 0;  ///< operation or root
  std::vector<std::byte> input = {};

  bool matches(const FakeCall& other) const {
    return name == other.name && dtype == other.dtype && argument == other.argument &&
           input.size() == other.input.size();
  }
};

struct FakeCollective {
  std::vector<std::optional<FakeCall>> call_N;
  std::vector<std::vector<std::byte>> output_N;  ///< empty until all ranks called, alike
};

struct FakeComm;

/// State that the ranks of one communicator share; guarded by the cluster's mutex.
struct FakeRoom {
  explicit FakeRoom(int num_ranks) : comm_N(num_ranks), begun_N(num_ranks), split_N(num_ranks) {}
  struct Split {
    int color = 0, key = 0;
    dist::nccl::CommHandle* part = nullptr;
  };
  int num_ranks() const { return static_cast<int>(comm_N.size()); }
  std::vector<FakeComm*> comm_N;
  std::vector<bool> begun_N;
  std::map<int64_t, FakeCollective> collectives;
  std::vector<std::optional<Split>> split_N;
};

struct FakeComm {
  std::shared_ptr<FakeRoom> room;
  int rank = 0;
  int owner = 0;  ///< rank in the cluster
  int64_t num_enqueued = 0;
  std::chrono::steady_clock::time_point busy_until{};
  std::function<void()> launch;  ///< of the call in progress
  bool splits = false, never_ends = false;
  std::string failure;
  bool is_aborted = false, is_freed = false;
  std::atomic<int> num_callers = 0;
};

struct FakeEvent {
  bool is_reached = false;
};

/// A thread that does jobs in order, each perhaps late.
class FakeStream {
 public:
  FakeStream(int most_delay_us, uint64_t seed);
  /// Does what is enqueued; where the last job destroys its own stream, without waiting for it.
  ~FakeStream();
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;
  void enqueue(std::function<void()> job);

 private:
  struct Jobs;  // the thread's, too
  std::shared_ptr<Jobs> jobs_;
  std::thread thread_;
};

std::vector<std::byte> bytes_of(const at::Tensor& values);

/// State of a FakeCluster that its devices share: communicators, and the collectives under way.
struct FakeCluster::Shared {
  Shared(int num, const FakePlan& plan_) : num_ranks(num), plan(plan_), num_collectives_N(num) {
    for (int rank = 0; plan.has_async_callers && rank < num; ++rank)
      callers_N.push_back(
          std::make_unique<FakeStream>(plan.most_delay_us, plan.seed * 16 + 2 * rank));
  }

  const int num_ranks;
  const FakePlan plan;
  mutable std::mutex mutex;  ///< of all below
  std::condition_variable changed;
  bool is_released = false;
  std::vector<int64_t> num_collectives_N;
  std::vector<std::string> breaches;
  std::map<std::string, std::shared_ptr<FakeRoom>> room_by_id;
  std::vector<std::unique_ptr<FakeComm>> comms;
  int num_ids = 0;
  struct Pinned {
    std::weak_ptr<std::byte> memory;
    const std::byte* begin = nullptr;
    int64_t num_bytes = 0;
  };
  std::vector<Pinned> pinned;
  /// Streams by rank; empty: the callers' host threads.
  std::vector<std::unique_ptr<FakeStream>> callers_N;

  bool hits(int rank, int64_t collective, FakeFault fault) const {
    return plan.fault == fault && plan.victim == rank && plan.at_collective == collective;
  }

  /// The pinned memory in which these bytes lie; null: none, or not any more.
  std::shared_ptr<std::byte> pinned_around(const std::byte* begin, int64_t num_bytes) const {
    const std::lock_guard lock(mutex);
    for (const Pinned& block : pinned)
      if (auto memory = block.memory.lock(); memory != nullptr && begin >= block.begin &&
                                             begin + num_bytes <= block.begin + block.num_bytes)
        return memory;
    return nullptr;
  }

  FakeComm* make_comm(const std::shared_ptr<FakeRoom>& room, int rank, int owner) {
    comms.push_back(std::make_unique<FakeComm>());
    FakeComm* comm = comms.back().get();
    comm->room = room;
    comm->rank = rank;
    comm->owner = owner;
    comm->busy_until = std::chrono::steady_clock::now() + std::chrono::microseconds(300);
    room->comm_N[rank] = comm;
    return comm;
  }

  /// The rank's connections close: its peers see it, and what it had running ends.
  void leave(FakeComm* comm, bool peers_see);

  /// The collective, if all ranks have called it alike.
  void complete(FakeRoom& room, FakeCollective& now);

  /// Runs one rank's part of the collective, from begin to end, on the stream's thread.
  void run(FakeComm* comm, int64_t number, int64_t place, FakeCall call, const at::Tensor& out);

  /// All have begun: each gets its part, as with NCCL some time after the whole says that it is
  /// done.
  void complete_split(FakeRoom& room);
  FakeStream late_writer{/*most_delay_us=*/0, /*seed=*/0};  ///< last: it uses the rest
};

}  // namespace lockstep::tests
