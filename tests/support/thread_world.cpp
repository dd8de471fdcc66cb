#include "tests/support/thread_world.h"

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "dist/communicator.h"
#include "dist/tensor_math.h"

namespace lockstep::tests {
namespace {

using dist::Communicator;
using dist::ReduceOp;
using dist::Work;

/// A rank's collective cannot be completed because another rank ended.
class PeerEnded final : public Error {
 public:
  PeerEnded()
      : Error(ExitCode::kUnavailable, "thread world", "another rank ended before this collective") {
  }
};

/// A barrier whose members may end. A round is over when each member has arrived or left. The last
/// member decides whether it failed, so that all members get one verdict, for any timing.
class Barrier {
 public:
  explicit Barrier(int num_members) : num_members_(num_members) {}

  /// Throws PeerEnded in every waiting member if any member left before this round was over.
  void arrive() {
    std::unique_lock lock(mutex_);
    ++num_arrived_;
    const int64_t round = round_;
    if (!complete_if_all_here()) round_over_.wait(lock, [&] { return round_ != round; });
    // The next round cannot end before this member arrives again or leaves, so the verdict still
    // stands.
    if (!whole_) throw PeerEnded();
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    ++num_left_;
    complete_if_all_here();
  }

 private:
  bool complete_if_all_here() {
    if (num_arrived_ + num_left_ < num_members_) return false;
    whole_ = num_left_ == 0;
    num_arrived_ = 0;
    ++round_;
    round_over_.notify_all();
    return true;
  }

  const int num_members_;
  std::mutex mutex_;
  std::condition_variable round_over_;
  int num_arrived_ = 0;
  int num_left_ = 0;
  int64_t round_ = 0;
  bool whole_ = true;
};

struct Room;

/// Arguments of one rank's collective. The other ranks read them between two rounds of the barrier.
struct Call {
  std::string_view name;
  at::ScalarType dtype = at::kByte;
  int64_t num_items = 0;
  int argument = 0;  ///< operation or root
  const std::byte* values = nullptr;
  int color = 0, key = 0;
  std::shared_ptr<Room> child;
  std::shared_ptr<std::byte> memory = {};

  bool matches(const Call& other) const {
    return name == other.name && dtype == other.dtype && num_items == other.num_items &&
           argument == other.argument;
  }
  std::string text() const {
    return fmt::format("{}({}, {} items, {})", name, c10::toString(dtype), num_items, argument);
  }
};

/// State that the ranks of one communicator share.
struct Room {
  explicit Room(int world_size) : barrier(world_size), calls(world_size) {}
  Barrier barrier;
  std::vector<Call> calls;
};

const std::byte* data_of(const at::Tensor& values) {
  return static_cast<const std::byte*>(values.const_data_ptr());
}

void copy(const at::Tensor& to, const std::byte* from, int64_t offset_bytes, int64_t num_bytes) {
  std::byte* place = static_cast<std::byte*>(to.mutable_data_ptr()) + offset_bytes;
  if (num_bytes > 0 && place != from) std::memcpy(place, from, num_bytes);
}

std::shared_ptr<std::byte> zeros(int64_t num_bytes) {
  constexpr size_t kPageBytes = 4096;
  const size_t size = (static_cast<size_t>(num_bytes) + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto* const begin = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, size));
  check(begin != nullptr, "memory for ranks to share");
  std::memset(begin, 0, size);
  return {begin, [](std::byte* memory) { std::free(memory); }};
}

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Room> room, int rank) : room_(std::move(room)), rank_(rank) {}
  ~ThreadCommunicator() override { room_->barrier.leave(); }

  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(room_->calls.size()); }
  at::Device device() const override { return at::kCPU; }
  int64_t bytes_reduced() const override { return bytes_reduced_; }

  std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override {
    dist::check_values(values_K, device());
    bytes_reduced_ += dist::payload_bytes(values_K);
    std::vector<std::byte> result(values_K.nbytes());
    begin(call("all_reduce", values_K, static_cast<int>(op)));
    reduce(0, result.data(), values_K.numel(), values_K.scalar_type(), op);
    end();
    copy(values_K, result.data(), 0, dist::payload_bytes(values_K));
    return std::make_unique<dist::DoneWork>();
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor out_K, at::Tensor values_NK) override {
    dist::check_pieces(out_K, values_NK, world_size(), device());
    bytes_reduced_ += dist::payload_bytes(values_NK);
    std::vector<std::byte> result(out_K.nbytes());
    begin(call("reduce_scatter", values_NK, 0));
    reduce(rank_ * dist::payload_bytes(out_K), result.data(), out_K.numel(), out_K.scalar_type(),
           ReduceOp::kSum);
    end();
    copy(out_K, result.data(), 0, dist::payload_bytes(out_K));
    return std::make_unique<dist::DoneWork>();
  }

  std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override {
    dist::check_pieces(values_K, out_NK, world_size(), device());
    begin(call("all_gather", values_K, 0));
    const int64_t piece_bytes = dist::payload_bytes(values_K);
    for (int r = 0; r < world_size(); ++r)
      copy(out_NK, room_->calls[r].values, r * piece_bytes, piece_bytes);
    end();
    return std::make_unique<dist::DoneWork>();
  }

  void broadcast(at::Tensor values_K, int root) override {
    dist::check_values(values_K, device());
    check(root >= 0 && root < world_size(), "broadcast from a rank that does not exist");
    begin(call("broadcast", values_K, root));
    if (rank_ != root) copy(values_K, room_->calls[root].values, 0, dist::payload_bytes(values_K));
    end();
  }

  void barrier() override {
    begin({.name = "barrier", .child = {}});
    end();
  }

  dist::SharedMemory share_memory(int64_t num_bytes) override {
    Call mine{.name = "share_memory", .num_items = num_bytes, .child = {}};
    if (rank_ == 0) mine.memory = zeros(num_bytes);
    begin(std::move(mine));
    std::shared_ptr<std::byte> memory = room_->calls[0].memory;
    end();
    room_->calls[rank_].memory.reset();
    return {std::move(memory), ""};
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    check(color >= 0, "split needs a color >= 0");
    begin({.name = "split", .color = color, .key = key, .child = {}});
    const std::vector<int> members = members_of(color);
    end();
    const bool is_first = members.front() == rank_;
    begin({.name = "split",
           .child = is_first ? std::make_shared<Room>(static_cast<int>(members.size())) : nullptr});
    std::shared_ptr<Room> child = room_->calls[members.front()].child;
    end();
    const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
    return std::make_unique<ThreadCommunicator>(std::move(child), static_cast<int>(place));
  }

 private:
  static Call call(std::string_view name, const at::Tensor& values, int argument) {
    return {.name = name,
            .dtype = values.scalar_type(),
            .num_items = values.numel(),
            .argument = argument,
            .values = data_of(values),
            .child = {}};
  }

  /// Until end(), each rank may read what the others brought, and none may write it.
  void begin(Call mine) {
    room_->calls[rank_] = std::move(mine);
    room_->barrier.arrive();
    for (int r = 1; r < world_size(); ++r)
      check(room_->calls[r].matches(room_->calls[0]),
            fmt::format("ranks make different calls: rank 0 {}, rank {} {}", room_->calls[0].text(),
                        r, room_->calls[r].text()));
  }

  void end() { room_->barrier.arrive(); }

  void reduce(int64_t offset_bytes, std::byte* out, int64_t num_items, at::ScalarType dtype,
              ReduceOp op) {
    std::vector<const std::byte*> inputs;
    for (const Call& peer : room_->calls) inputs.push_back(peer.values + offset_bytes);
    dist::reduce_in_rank_order(inputs, out, num_items, dtype, op);
  }

  /// The ranks with this color, by (key, rank).
  std::vector<int> members_of(int color) const {
    std::vector<int> members;
    for (int r = 0; r < world_size(); ++r)
      if (room_->calls[r].color == color) members.push_back(r);
    std::stable_sort(members.begin(), members.end(),
                     [&](int a, int b) { return room_->calls[a].key < room_->calls[b].key; });
    return members;
  }

  std::shared_ptr<Room> room_;
  int rank_;
  int64_t bytes_reduced_ = 0;
};

/// Runs one rank; returns what it threw.
std::exception_ptr run_rank(const std::shared_ptr<Room>& room, int rank,
                            const std::function<void(Communicator&)>& body) {
  ThreadCommunicator comm(room, rank);
  try {
    body(comm);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

bool is_own_fault(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerEnded&) {
    return false;
  } catch (...) {
    return true;
  }
}

/// The error of the lowest rank that failed by itself; if a rank just returned too early, of the
/// lowest that noticed.
void rethrow_first(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr first;
  for (const std::exception_ptr& error : errors) {
    if (error && is_own_fault(error)) std::rethrow_exception(error);
    if (error && !first) first = error;
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace

void run_ranks(int world_size, const std::function<void(Communicator&)>& body) {
  const auto room = std::make_shared<Room>(world_size);
  std::vector<std::exception_ptr> errors(world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] { errors[rank] = run_rank(room, rank, body); });
  for (std::thread& thread : threads) thread.join();
  rethrow_first(errors);
}

}  // namespace lockstep::tests
