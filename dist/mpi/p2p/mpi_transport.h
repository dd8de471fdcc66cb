#pragma once

#include <vector>

#include <mpi.h>

#include "dist/mpi/p2p/transport.h"
#include "dist/mpi/peer/mpi_handles.h"

namespace lockstep::dist::mpi {

/// Transport over MPI.
class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(OwnedComm comm) : comm_(std::move(comm)) {}

  int rank() const override { return comm_.rank(); }
  int num_ranks() const override { return comm_.num_ranks(); }
  std::vector<Peer> gather_peers() override { return mpi::gather_peers(comm_); }

  Request send(const std::byte* bytes, int64_t num_bytes, int to, int tag) override;
  Request receive(std::byte* bytes, int64_t num_bytes, int from, int tag) override;
  bool test_all(std::span<Request> requests) override;
  bool test(Request* request) override;

  const OwnedComm& comm() const { return comm_; }

 private:
  OwnedComm comm_;
  std::vector<MPI_Request> asked_;  ///< a member, so that a steady step allocates nothing
};

}  // namespace lockstep::dist::mpi
