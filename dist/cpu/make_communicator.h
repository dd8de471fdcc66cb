#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "dist/cpu/peer.h"
#include "dist/cpu/rank_group.h"

namespace lockstep::dist::cpu {

/// Transport options of a communicator. Equal on all ranks.
struct CommunicatorOptions {
  bool shared_window = true;  ///< ranks of one host use shared memory, if it has the space
  double timeout_s = 300;     ///< longer waits for a peer within a collective throw
  double slow_after_s = 60;   ///< a longer wait is logged, once, naming the peer
  /// Host of each rank, from 0; empty: determined by the group. For tests.
  std::vector<int> hosts_N = {};
  /// Largest number of ranks, or hosts, that send to all others (dist/cpu/p2p_communicator.h).
  int direct_ranks = 16;
  int64_t piece_bytes = 1 << 20;  ///< longest message of a tensor; whole 8 bytes
  /// Shared memory to leave for others, such as MPI's own messages.
  int64_t reserved_bytes = 0;
  /// Asked during long waits (PeerWatch::set_find_lost). Not compared between ranks.
  FindLost find_lost = {};
  /// False: no communicator is made where no host's ranks share memory.
  bool messages_alone = true;
};

/// Function that creates the children of a communicator. Collective.
using MakeCommunicator = std::function<std::unique_ptr<Communicator>(std::unique_ptr<RankGroup>)>;

/// Creates the fastest communicator of these ranks: over shared memory if they are on one host with
/// enough space, by hosts if some hosts have several ranks, else over messages. Null on all ranks
/// if only messages would do, and the group has no transport or the options exclude that. Its
/// children are created in the same way. Collective.
std::unique_ptr<Communicator> make_communicator(std::unique_ptr<RankGroup> ranks,
                                                const CommunicatorOptions& options);

}  // namespace lockstep::dist::cpu
