// Chooses the backend by the placement of ranks: shared memory on one host, the exchange by hosts
// on several, else messages between all ranks.
#include "dist/mpi/make_communicator.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "dist/mpi/hierarchical_communicator.h"
#include "dist/mpi/hosts.h"
#include "dist/mpi/p2p/mpi_transport.h"
#include "dist/mpi/p2p/p2p_communicator.h"
#include "dist/mpi/peer/peer.h"
#include "dist/mpi/shm/shared_memory_group.h"
#include "dist/mpi/shm/shared_window.h"
#include "dist/mpi/shm/shm_communicator.h"
#include "dist/mpi/world.h"

namespace lockstep::dist::mpi {
namespace {

// Measured by bench/allreduce. On one host, larger slots no longer fit in the caches. Between
// hosts, smaller slots mean too many messages, unless several peers share a link.
constexpr int64_t kOneHostSlotBytes = 256 << 10;
constexpr int64_t kManyHostsSlotBytes = 1 << 20;
constexpr int64_t kPieceBytes = 1 << 20;
// Messages above Open MPI's eager limit (64 KiB over TCP) wait for an answer before data flows.
// That costs nothing for a single message to a single host. With several messages, answers queue
// after other messages' bytes, and the link is idle for a fourth of the time.
constexpr int64_t kEagerPieceBytes = 56 << 10;

int64_t slot_bytes(const std::vector<int>& hosts_N, int num_hosts,
                   const CommunicatorOptions& options) {
  const bool has_several_sums =
      TreeParts::of_hosts(hosts_N).owners.size() > static_cast<size_t>(num_hosts);
  const bool sends_several =
      num_hosts <= options.direct_ranks && (num_hosts > 2 || has_several_sums);
  return sends_several ? std::min(kManyHostsSlotBytes, num_hosts * kEagerPieceBytes)
                       : kManyHostsSlotBytes;
}

OwnedComm ranks_of_this_host(const OwnedComm& comm, const CommunicatorOptions& options) {
  if (!options.hosts_N.empty()) return split(comm, options.hosts_N.at(comm.rank()));
  MPI_Comm shared = MPI_COMM_NULL;
  check_mpi(
      MPI_Comm_split_type(comm.get(), MPI_COMM_TYPE_SHARED, comm.rank(), MPI_INFO_NULL, &shared),
      "MPI_Comm_split_type");
  return OwnedComm(shared);
}

MessageOptions message_options(const CommunicatorOptions& options, int num_hosts) {
  return {.timeout_s = options.timeout_s,
          .slow_after_s = options.slow_after_s,
          .direct_ranks = options.direct_ranks,
          .piece_bytes = num_hosts > 2 ? kEagerPieceBytes : kPieceBytes};
}

/// Creates the communicator of all ranks over messages; `make` creates its children.
std::unique_ptr<P2pCommunicator> make_flat(OwnedComm comm, const MessageOptions& options,
                                           const MakeCommunicator& make) {
  auto transport = std::make_unique<MpiTransport>(std::move(comm));
  // Owned by the communicator, so it outlives the callback.
  const OwnedComm& own = transport->comm();
  const auto split_off = [&own, make](int color, int key) {
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(own.get(), color, key, &part), "MPI_Comm_split");
    return make(OwnedComm(part));
  };
  return std::make_unique<P2pCommunicator>(std::move(transport), options, split_off);
}

SharedMemoryGroup make_group(SharedSegments made, const OwnedComm& host, const OwnedComm& all,
                             const CommunicatorOptions& options) {
  SharedMemoryGroup group(std::move(made.segments_M), host.rank(), made.layout, gather_peers(host));
  group.set_limits(options.timeout_s, options.slow_after_s);
  check_mpi(MPI_Barrier(all.get()), "MPI_Barrier");  // every member's head is initialised
  return group;
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(OwnedComm comm, const CommunicatorOptions& options,
                                                const std::shared_ptr<WindowKeeper>& keeper) {
  const MakeCommunicator make = [options, keeper](OwnedComm part) {
    CommunicatorOptions of_child = options;
    // hosts_N has the ranks of the parent, so children ask MPI.
    of_child.hosts_N.clear();
    return make_communicator(std::move(part), of_child, keeper);
  };
  const OwnedComm host = ranks_of_this_host(comm, options);
  Hosts hosts = find_hosts(comm, host);
  const int num_hosts = hosts.num_hosts();
  const MessageOptions messages = message_options(options, num_hosts);
  const bool shares = options.shared_window && num_hosts < comm.num_ranks();
  if (shares && num_hosts == 1) {
    if (auto made = make_shared_segments(host, comm, {}, kOneHostSlotBytes, *keeper)) {
      SharedMemoryGroup group = make_group(std::move(*made), host, comm, options);
      return std::make_unique<ShmCommunicator>(std::move(comm), std::move(group), make,
                                               keeper->reserved_bytes());
    }
  } else if (shares) {
    const RoomLayout layout = HostExchange::layout_for(hosts.hosts_N, hosts.hosts_N[comm.rank()]);
    if (auto made = make_shared_segments(host, comm, layout,
                                         slot_bytes(hosts.hosts_N, num_hosts, options), *keeper)) {
      SharedMemoryGroup group = make_group(std::move(*made), host, comm, options);
      return std::make_unique<HierarchicalCommunicator>(
          make_flat(std::move(comm), messages, make), std::move(group), std::move(hosts), messages);
    }
  }
  return make_flat(std::move(comm), messages, make);
}

}  // namespace lockstep::dist::mpi
