#pragma once

/// What an all-reduce, or a reduce-scatter and an all-gather together, puts on the links between
/// hosts: counts, no seconds. Pure. Every host has as many ranks as the others.
namespace lockstep::daemon {

/// Sizes on the way, over those of a gradient as it travels. Where hosts or the tree add 16-bit
/// numbers, their sums travel in float32.
struct TravelWidths {
  double sums = 1, results = 1;
};

/// For each byte of the tensor. A link carries both directions at once.
struct LinkTraffic {
  double sent = 0;  ///< by the host that sends most
  /// What the busiest link carries one way, added up over turns that follow one another: what the
  /// exchange has to wait for.
  double awaited = 0;
  int turns = 0;  ///< messages between hosts that wait for one another
};

/// Each of the ranks sends to each other (dist/mpi/p2p/p2p_communicator.h).
LinkTraffic direct_between_ranks(int hosts, int ranks_per_host, const TravelWidths& widths);

/// The ranks of a host add what they hold of the sum tree, then hosts send to each other
/// (dist/mpi/host_exchange.h). A number of ranks a host that is no power of two cuts
/// nodes of the tree: such a host sends several sums.
LinkTraffic direct_between_hosts(int hosts, int ranks_per_host, const TravelWidths& widths);

/// Halving and doubling along the sum tree (dist/mpi/p2p/tree_exchange.h). members_per_host:
/// members of the tree on each host: all its ranks, or its leader alone.
LinkTraffic along_tree(int hosts, int members_per_host, const TravelWidths& widths);

}  // namespace lockstep::daemon
