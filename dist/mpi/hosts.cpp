// Placement of ranks on hosts, agreed by two small collectives.
#include "dist/mpi/hosts.h"

#include <algorithm>
#include <utility>

#include <mpi.h>

namespace lockstep::dist::mpi {

int Hosts::num_hosts() const { return 1 + *std::max_element(hosts_N.begin(), hosts_N.end()); }

std::vector<int> Hosts::places_N() const {
  std::vector<int> places(hosts_N.size());
  int next = 0;
  for (int host = 0; host < num_hosts(); ++host)
    for (size_t r = 0; r < hosts_N.size(); ++r)
      if (hosts_N[r] == host) places[r] = next++;
  return places;
}

OwnedComm split(const OwnedComm& comm, int color) {
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm.get(), color, comm.rank(), &part), "MPI_Comm_split");
  return OwnedComm(part);
}

Hosts find_hosts(const OwnedComm& comm, const OwnedComm& host) {
  Hosts hosts;
  const bool is_leader = host.rank() == 0;
  // The leaders' communicator numbers the hosts by their first ranks.
  OwnedComm group = split(comm, is_leader ? 0 : 1);
  int number = is_leader ? group.rank() : 0;
  check_mpi(MPI_Bcast(&number, 1, MPI_INT, 0, host.get()), "MPI_Bcast");
  hosts.hosts_N.resize(comm.num_ranks());
  check_mpi(MPI_Allgather(&number, 1, MPI_INT, hosts.hosts_N.data(), 1, MPI_INT, comm.get()),
            "MPI_Allgather");
  if (is_leader) hosts.leaders = std::make_unique<OwnedComm>(std::move(group));
  return hosts;
}

}  // namespace lockstep::dist::mpi
