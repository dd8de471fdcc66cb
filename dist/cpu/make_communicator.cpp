#include "dist/cpu/make_communicator.h"

#include <algorithm>
#include <utility>

#include "dist/cpu/hierarchical_communicator.h"
#include "dist/cpu/p2p_communicator.h"
#include "dist/cpu/shared_memory.h"
#include "dist/cpu/shared_memory_group.h"
#include "dist/cpu/shm_communicator.h"

namespace lockstep::dist::cpu {
namespace {

// Measured by bench/programs/allreduce.cpp. On one host, larger slots no longer fit in the caches.
// Between hosts, smaller slots mean too many messages, unless several peers share a link.
constexpr int64_t kOneHostSlotBytes = 256 << 10;
constexpr int64_t kManyHostsSlotBytes = 1 << 20;
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

/// Creates a communicator of all ranks that can send messages; `make` creates its children.
template <typename Kind, typename... More>
std::unique_ptr<Communicator> make_flat(std::unique_ptr<RankGroup> ranks,
                                        const CommunicatorOptions& options,
                                        const MakeCommunicator& make, More&&... more) {
  std::unique_ptr<Transport> transport = ranks->make_transport();
  if (transport == nullptr) return nullptr;
  const auto split_off = [own = std::shared_ptr<RankGroup>(std::move(ranks)), make](
                             int color, int key) { return make(own->split(color, key)); };
  return std::make_unique<Kind>(std::move(transport), options, split_off,
                                std::forward<More>(more)...);
}

SharedMemoryGroup make_group(SharedSegments made, const RankGroup& host, const RankGroup& all,
                             const CommunicatorOptions& options) {
  SharedMemoryGroup group(std::move(made.segments_M), host.rank(), made.layout, gather_peers(host),
                          std::move(made.memory));
  group.set_limits(options.timeout_s, options.slow_after_s);
  group.set_find_lost(options.find_lost);
  static_cast<void>(gather(all, 0));  // a barrier: every member's head is initialised
  return group;
}

}  // namespace

std::unique_ptr<Communicator> make_communicator(std::unique_ptr<RankGroup> ranks,
                                                const CommunicatorOptions& options) {
  const MakeCommunicator make = [options](std::unique_ptr<RankGroup> part) {
    CommunicatorOptions of_child = options;
    of_child.hosts_N.clear();  // it has the ranks of the parent
    return make_communicator(std::move(part), of_child);
  };
  const int self = ranks->rank();
  const std::unique_ptr<RankGroup> host = options.hosts_N.empty()
                                              ? ranks->ranks_of_this_host()
                                              : ranks->split(options.hosts_N.at(self), self);
  Hosts hosts = find_hosts(*ranks, *host);
  const int num_hosts = hosts.num_hosts();
  CommunicatorOptions messages = options;
  if (num_hosts > 2) messages.piece_bytes = kEagerPieceBytes;
  const bool shares = options.shared_window && num_hosts < ranks->num_ranks();
  if (shares && num_hosts == 1) {
    if (auto made =
            make_shared_segments(*host, *ranks, {}, kOneHostSlotBytes, options.reserved_bytes)) {
      SharedMemoryGroup group = make_group(std::move(*made), *host, *ranks, options);
      return std::make_unique<ShmCommunicator>(std::move(ranks), std::move(group), make,
                                               options.reserved_bytes);
    }
  } else if (shares && ranks->make_transport() != nullptr) {
    const SegmentLayout layout = HostExchange::layout_for(hosts.hosts_N, hosts.hosts_N[self]);
    if (auto made = make_shared_segments(*host, *ranks, layout,
                                         slot_bytes(hosts.hosts_N, num_hosts, options),
                                         options.reserved_bytes)) {
      SharedMemoryGroup group = make_group(std::move(*made), *host, *ranks, options);
      return make_flat<HierarchicalCommunicator>(std::move(ranks), messages, make, std::move(group),
                                                 std::move(hosts));
    }
  }
  if (!options.messages_alone) return nullptr;
  return make_flat<P2pCommunicator>(std::move(ranks), messages, make);
}

}  // namespace lockstep::dist::cpu
