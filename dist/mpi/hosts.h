#pragma once

#include <memory>
#include <vector>

#include "dist/mpi/peer/mpi_handles.h"

namespace lockstep::dist::mpi {

/// Placement of a communicator's ranks on hosts, and the communicator of the first ranks of all
/// hosts.
struct Hosts {
  std::vector<int> hosts_N;            ///< host of each rank, numbered by their first ranks
  std::unique_ptr<OwnedComm> leaders;  ///< on the first rank of each host, in order; else empty

  int num_hosts() const;
  /// Place of each rank if the ranks of host 0 come first, then those of host 1, ...
  std::vector<int> places_N() const;
};

/// Finds the placement of the ranks of `comm`. host: those on this host, in the same order.
/// Collective over `comm`.
Hosts find_hosts(const OwnedComm& comm, const OwnedComm& host);

/// Communicator of the ranks of `comm` that pass the same color, in the same order. Collective.
OwnedComm split(const OwnedComm& comm, int color);

}  // namespace lockstep::dist::mpi
