#include "tests/support/fake_gpu_shared.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "dist/tensor_math.h"

namespace lockstep::tests {

struct FakeStream::Jobs {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> all;
  bool must_end = false;

  void run(int most_delay_us, uint64_t seed) {
    const at::NoGradGuard no_grad;
    std::minstd_rand random(static_cast<uint32_t>(seed + 1));
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [&] { return must_end || !all.empty(); });
      if (all.empty()) return;
      std::function<void()> job = std::move(all.front());
      all.pop_front();
      lock.unlock();
      if (most_delay_us > 0 && random() % 3 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % most_delay_us));
      job();
      job = nullptr;
      lock.lock();
    }
  }
};

FakeStream::FakeStream(int most_delay_us, uint64_t seed)
    : jobs_(std::make_shared<Jobs>()),
      thread_([jobs = jobs_, most_delay_us, seed] { jobs->run(most_delay_us, seed); }) {}

FakeStream::~FakeStream() {
  {
    const std::lock_guard lock(jobs_->mutex);
    jobs_->must_end = true;
  }
  jobs_->wake.notify_all();
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

void FakeStream::enqueue(std::function<void()> job) {
  {
    const std::lock_guard lock(jobs_->mutex);
    jobs_->all.push_back(std::move(job));
  }
  jobs_->wake.notify_all();
}

std::vector<std::byte> bytes_of(const at::Tensor& values) {
  const auto* first = static_cast<const std::byte*>(values.const_data_ptr());
  return {first, first + values.nbytes()};
}

void FakeCluster::Shared::leave(FakeComm* comm, bool peers_see) {
  comm->is_aborted = true;
  for (FakeComm* peer : comm->room->comm_N)
    if (peers_see && peer != nullptr && peer != comm && peer->failure.empty())
      peer->failure = "remote process exited or there was a network error";
  changed.notify_all();
}

void FakeCluster::Shared::complete(FakeRoom& room, FakeCollective& now) {
  std::vector<const std::byte*> inputs;
  for (const auto& call : now.call_N) {
    if (!call || !call->matches(*now.call_N[0])) return;
    inputs.push_back(call->input.data());
  }
  const FakeCall& call = *now.call_N[0];
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
                                 static_cast<dist::ReduceOp>(call.argument));
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

void FakeCluster::Shared::run(FakeComm* comm, int64_t number, int64_t place, FakeCall call,
                              const at::Tensor& out) {
  if (plan.fault == FakeFault::kLate)
    std::this_thread::sleep_for(std::chrono::milliseconds((comm->owner * 7 + place * 5) % 11));
  std::unique_lock lock(mutex);
  FakeRoom& room = *comm->room;
  FakeCollective& mine = room.collectives[place];
  mine.call_N.resize(room.num_ranks());
  const auto has_ended = [&] { return comm->is_aborted || is_released; };
  if (hits(comm->owner, number, FakeFault::kAsyncError)) {
    comm->failure = "unhandled system error";
    changed.wait(lock, has_ended);
  } else if (hits(comm->owner, number, FakeFault::kHang) ||
             hits(comm->owner, number, FakeFault::kTorchError)) {
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

void FakeCluster::Shared::complete_split(FakeRoom& room) {
  for (const auto& split : room.split_N)
    if (!split) return;
  std::map<int, std::vector<int>> ranks_by_color;
  for (int rank = 0; rank < room.num_ranks(); ++rank)
    ranks_by_color[room.split_N[rank]->color].push_back(rank);
  for (auto& [color, ranks] : ranks_by_color) {
    std::stable_sort(ranks.begin(), ranks.end(),
                     [&](int a, int b) { return room.split_N[a]->key < room.split_N[b]->key; });
    const auto part = std::make_shared<FakeRoom>(static_cast<int>(ranks.size()));
    for (size_t i = 0; i < ranks.size(); ++i) {
      FakeComm* const parent = room.comm_N[ranks[i]];
      FakeComm* const made = make_comm(part, static_cast<int>(i), parent->owner);
      part->begun_N[i] = true;
      late_writer.enqueue([this, parent, made, place = room.split_N[ranks[i]]->part] {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        const std::lock_guard lock(mutex);
        if (!parent->is_freed) std::atomic_ref(*place).store(made);
      });
    }
  }
  for (int rank = 0; rank < room.num_ranks(); ++rank) {
    room.split_N[rank].reset();
    room.comm_N[rank]->splits = false;
  }
}

}  // namespace lockstep::tests
