#pragma once

#include <memory>
#include <vector>

#include "dist/mpi/peer/mpi_handles.h"

namespace lockstep::dist::mpi {

/// Placement of a communicator's ranks on hosts, and the communicator of the hosts' first ranks.
struct Hosts {
  std::vector<int> hosts_N;            ///< host of each rank, numbered by their first ranks
  std::unique_ptr<OwnedComm> leaders;  ///< on the first rank of each host, in order; null on others

  int num_hosts() const;
  /// Returns the position of each rank if ranks are ordered by host: those of host 0 first, and so
  /// on.
  std::vector<int> places_N() const;
};

/// Determines the placement of the ranks of `comm`. host: communicator of this host's ranks, in the
/// same order. Collective over `comm`.
Hosts find_hosts(const OwnedComm& comm, const OwnedComm& host);

/// Creates a communicator of the ranks of `comm` that pass the same color, in the same order.
/// Collective.
OwnedComm split(const OwnedComm& comm, int color);

}  // namespace lockstep::dist::mpi
