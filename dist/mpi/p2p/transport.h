#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dist/mpi/peer/peer.h"

namespace lockstep::dist::mpi {

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

}  // namespace lockstep::dist::mpi
