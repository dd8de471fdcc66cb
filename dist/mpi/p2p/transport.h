#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dist/mpi/peer/peer.h"

namespace lockstep::dist::mpi {

/// Point-to-point messages between the ranks of one communicator, as MPI has them; what P2pChannel
/// stands on, so that tests can put another thing there which counts messages or needs no
/// processes.
///
/// Order: messages between two ranks with the same tag arrive in the order in which they were sent,
/// and go to receives in the order in which these were begun. Threads: one caller at a time.
/// Errors: Error(kUnavailable).
class Transport {
 public:
  /// A message under way; which one, only the transport knows.
  enum class Request : uintptr_t {};

  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;
  /// Who the ranks are, by rank. Collective.
  virtual std::vector<Peer> gather_peers() = 0;

  /// The bytes must stay until the request is done.
  virtual Request send(const std::byte* bytes, int64_t num_bytes, int to, int tag) = 0;
  /// Up to num_bytes.
  virtual Request receive(std::byte* bytes, int64_t num_bytes, int from, int tag) = 0;
  /// True once all are done. What is done may be asked for again.
  virtual bool test_all(std::span<Request> requests) = 0;
  virtual bool test(Request* request) = 0;
};

}  // namespace lockstep::dist::mpi
