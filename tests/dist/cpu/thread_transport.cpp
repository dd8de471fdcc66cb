#include "tests/dist/cpu/thread_transport.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

#include "base/error.h"

namespace lockstep::tests {

void ThreadPost::put(int from, int to, int tag, std::vector<std::byte> bytes) {
  Box& box = boxes_[static_cast<size_t>(to)];
  const std::lock_guard lock(box.mutex);
  box.messages[{from, tag}].push_back(std::move(bytes));
}

bool ThreadPost::take(int from, int to, int tag, std::byte* bytes, int64_t num_bytes) {
  Box& box = boxes_[static_cast<size_t>(to)];
  const std::lock_guard lock(box.mutex);
  auto& queue = box.messages[{from, tag}];
  if (queue.empty()) return false;
  check(static_cast<int64_t>(queue.front().size()) <= num_bytes, "a message is cut");
  std::memcpy(bytes, queue.front().data(), queue.front().size());
  queue.pop_front();
  return true;
}

std::vector<dist::cpu::Peer> ThreadTransport::gather_peers() {
  std::vector<dist::cpu::Peer> peers(static_cast<size_t>(num_ranks()), dist::cpu::this_process());
  for (int r = 0; r < num_ranks(); ++r) peers[static_cast<size_t>(r)].world_rank = r;
  return peers;
}

ThreadTransport::Request ThreadTransport::send(const std::byte* bytes, int64_t num_bytes, int to,
                                               int tag) {
  post_->put(rank_, to, tag, {bytes, bytes + num_bytes});
  return Request{0};
}

ThreadTransport::Request ThreadTransport::receive(std::byte* bytes, int64_t num_bytes, int from,
                                                  int tag) {
  due_.emplace(next_, Due{bytes, num_bytes, from, tag});
  return Request{next_++};
}

void ThreadTransport::take_what_came() {
  std::vector<std::pair<int, int>> waits;  // a later receive must not pass an earlier one
  for (auto one = due_.begin(); one != due_.end();) {
    const Due& due = one->second;
    const std::pair key{due.from, due.tag};
    const bool is_first = std::find(waits.begin(), waits.end(), key) == waits.end();
    if (is_first && post_->take(due.from, rank_, due.tag, due.bytes, due.num_bytes)) {
      one = due_.erase(one);
      continue;
    }
    if (is_first) waits.push_back(key);
    ++one;
  }
}

bool ThreadTransport::test_all(std::span<Request> requests) {
  bool all = true;
  for (Request& request : requests) all = test(&request) && all;
  return all;
}

bool ThreadTransport::test(Request* request) {
  if (*request == Request{0}) return true;
  take_what_came();
  if (due_.contains(static_cast<uintptr_t>(*request))) return false;
  *request = Request{0};
  return true;
}

void run_message_ranks(int num_ranks, const dist::cpu::CommunicatorOptions& options,
                       const std::function<void(dist::Communicator&)>& body) {
  const auto post = std::make_shared<ThreadPost>(num_ranks);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        dist::cpu::P2pCommunicator comm(
            std::make_unique<ThreadTransport>(post, rank), options,
            [](int, int) -> std::unique_ptr<dist::Communicator> { return nullptr; });
        body(comm);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace lockstep::tests
