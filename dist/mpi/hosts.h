#pragma once

#include <memory>
#include <vector>

#include "dist/mpi/peer/mpi_handles.h"

namespace lockstep::dist::mpi {

/// Where the ranks of a communicator run, and the messages between the first ranks of all hosts.
struct Hosts {
  std::vector<int> hosts_N;            ///< host of each rank, numbered by their first ranks
  std::unique_ptr<OwnedComm> leaders;  ///< on the first rank of each host, in order; else empty

  int num_hosts() const;
  /// Place of each rank if the ranks of host 0 come first, then those of host 1, ...
  std::vector<int> places_N() const;
};

/// host: the ranks of `comm` on this host, in the same order. Collective over `comm`.
Hosts find_hosts(const OwnedComm& comm, const OwnedComm& host);

/// Those of `comm` that pass the same color, in the same order. Collective.
OwnedComm split(const OwnedComm& comm, int color);

}  // namespace lockstep::dist::mpi
