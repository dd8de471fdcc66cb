#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "dist/cpu/p2p_channel.h"
#include "dist/cpu/p2p_communicator.h"

namespace lockstep::tests {

/// Messages between ranks that are threads: sent, but not yet received.
class ThreadPost {
 public:
  explicit ThreadPost(int num_ranks) : boxes_(num_ranks) {}
  int num_ranks() const { return static_cast<int>(boxes_.size()); }

  void put(int from, int to, int tag, std::vector<std::byte> bytes);
  /// False if there is none.
  bool take(int from, int to, int tag, std::byte* bytes, int64_t num_bytes);

 private:
  struct Box {
    std::mutex mutex;
    std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> messages;  ///< by from, tag
  };
  std::vector<Box> boxes_;
};

/// dist/mpi's messages between threads: what is sent is there at once.
class ThreadTransport final : public dist::cpu::Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadPost> post, int rank)
      : post_(std::move(post)), rank_(rank) {}

  int rank() const override { return rank_; }
  int num_ranks() const override { return post_->num_ranks(); }
  std::vector<dist::cpu::Peer> gather_peers() override;
  Request send(const std::byte* bytes, int64_t num_bytes, int to, int tag) override;
  Request receive(std::byte* bytes, int64_t num_bytes, int from, int tag) override;
  bool test_all(std::span<Request> requests) override;
  bool test(Request* request) override;

 private:
  struct Due {
    std::byte* bytes;
    int64_t num_bytes;
    int from, tag;
  };
  void take_what_came();

  std::shared_ptr<ThreadPost> post_;
  int rank_;
  uintptr_t next_ = 1;            ///< 0: done
  std::map<uintptr_t, Due> due_;  ///< in the order in which they were begun
};

/// Runs `body` on that many ranks, each a thread with its P2pCommunicator over
/// ThreadTransports. If one throws, so does this, once all have ended: the others' waits have a
/// limit.
void run_message_ranks(int num_ranks, const dist::cpu::CommunicatorOptions& options,
                       const std::function<void(dist::Communicator&)>& body);

}  // namespace lockstep::tests
