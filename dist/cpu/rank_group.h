#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dist/cpu/peer.h"

/// Interface of a launcher's library for collectives between CPUs: MPI (dist/mpi/comm.h),
/// PyTorch's process groups, or threads in tests.
namespace lockstep::dist::cpu {

/// Point-to-point messages between the ranks of one communicator, like MPI's. P2pChannel uses this
/// interface, so that tests can count messages or do without processes.
///
/// Order: messages between two ranks with the same tag arrive in sending order, and match receives
/// in the order in which these began. Threads: one caller at a time. Errors: Error(kUnavailable).
class Transport {
 public:
  /// A pending message; opaque outside the transport.
  enum class Request : uintptr_t {};

  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;
  /// Returns the identities of the ranks, by rank. Collective.
  virtual std::vector<Peer> gather_peers() = 0;

  /// Starts a send. The bytes must stay until the request is done.
  virtual Request send(const std::byte* bytes, int64_t num_bytes, int to, int tag) = 0;
  /// Starts a receive of up to num_bytes.
  virtual Request receive(std::byte* bytes, int64_t num_bytes, int from, int tag) = 0;
  /// True once all requests are done. Completed requests may be tested again.
  virtual bool test_all(std::span<Request> requests) = 0;
  virtual bool test(Request* request) = 0;
};

/// The ranks of a communicator that is being created: their order, and the small exchanges that
/// its creation needs. Collective calls block. Errors: Error(kUnavailable).
class RankGroup {
 public:
  virtual ~RankGroup() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;
  /// Returns this process with its rank in the world.
  virtual Peer self() const = 0;

  /// Copies each rank's bytes, [num_bytes], to piece r of all_N, [N * num_bytes]. Collective.
  virtual void all_gather(const void* own, int64_t num_bytes, void* all_N) const = 0;
  /// Creates the group of the ranks that pass the same color, ordered by (key, rank here).
  /// Collective.
  virtual std::unique_ptr<RankGroup> split(int color, int key) const = 0;
  /// Creates the group of the ranks that can share memory with this one, in the same order.
  /// Collective.
  virtual std::unique_ptr<RankGroup> ranks_of_this_host() const = 0;
  /// Creates a transport between these ranks; null if the library has only collectives.
  virtual std::unique_ptr<Transport> make_transport() const = 0;
};

/// Returns every rank's value, by rank. Collective. Values travel in their memory layout.
template <typename Value>
std::vector<Value> gather(const RankGroup& ranks, const Value& own) {
  std::vector<Value> all_N(static_cast<size_t>(ranks.num_ranks()));
  ranks.all_gather(&own, sizeof(Value), all_N.data());
  return all_N;
}

/// Returns the identities of the ranks, by rank. Collective.
inline std::vector<Peer> gather_peers(const RankGroup& ranks) {
  return gather(ranks, ranks.self());
}

}  // namespace lockstep::dist::cpu
