#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dist/mpi/hosts.h"
#include "dist/mpi/p2p/chunked_all_reduce.h"
#include "dist/mpi/p2p/mpi_transport.h"
#include "dist/mpi/p2p/p2p_channel.h"
#include "dist/mpi/p2p/p2p_communicator.h"
#include "dist/mpi/p2p/tree_exchange.h"
#include "dist/mpi/peer/collective_signature.h"
#include "dist/mpi/shm/shared_memory_group.h"

namespace lockstep::dist::mpi {

/// Collectives of large tensors between ranks on several hosts, some of which run several ranks.
///
/// The ranks of a host add their nodes of the sum tree (docs/decisions/0011-sums-as-a-tree.md) in
/// shared memory. One of them, the leader, exchanges these partial sums with the leaders of the
/// other hosts. Then every rank copies its part of the result. Let each of H equal hosts hold a
/// whole node of the tree. Then a host sends S (H - 1) / H of S bytes for a reduce_scatter. It
/// sends as much for an all_gather and twice that for an all_reduce, for any number of its ranks.
/// Chunks pass through six stages, and stages of neighbouring chunks overlap.
///
/// More than MessageOptions::direct_ranks hosts all-reduce along the tree
/// (dist/mpi/p2p/tree_exchange.h), if each has one part of it: 1, 2, 4, 8, ... ranks each, in order
/// (the last host may have fewer). They cannot scatter. Otherwise each leader sends to each other
/// leader.
///
/// Order and threads: those of a Communicator.
class HostExchange {
 public:
  /// notes: the channel between all ranks; outlives this.
  HostExchange(P2pChannel& notes, SharedMemoryGroup group, Hosts hosts,
               const MessageOptions& options);

  /// Returns the layout of a group: slots for chunks in all stages, and rings for this host's
  /// partial sums and the result.
  static RoomLayout layout_for(const std::vector<int>& hosts_N, int host);

  /// True if reduce_scatter() and all_gather() may be called with N pieces of such items. The same
  /// on all ranks.
  bool can_scatter(int64_t item_bytes) const;

  /// Replaces values by their reduction over all ranks; num_items > 0.
  void all_reduce(const Call& call, std::byte* values, int64_t num_items, const Items& items);
  /// Implement Communicator::reduce_scatter() and all_gather() for num_items > 0 in each of N
  /// pieces. Require can_scatter().
  void reduce_scatter(const Call& call, const std::byte* values, std::byte* out, int64_t num_items,
                      const Items& items);
  void all_gather(const Call& call, const std::byte* values, std::byte* out, int64_t num_items,
                  const Items& items);

  void set_timeout(double timeout_s);

 private:
  static constexpr int kStages = 6;

  struct Chunk;
  struct Part {  ///< a node of the sum tree that this host holds
    std::vector<int> members;
    std::vector<int> first_ranks;  ///< the members' ranks, and the end of the node
  };
  /// One collective: kind, buffers, format.
  struct Job {
    CallKind kind = CallKind::kAllReduce;
    const std::byte* values = nullptr;
    std::byte* out = nullptr;
    int64_t num_items = 0;  ///< of the tensor, or of one of N pieces
    ChunkedAllReduce::Format format{};

    bool reduces() const { return kind != CallKind::kAllGather; }
    bool gathers() const { return kind != CallKind::kReduceScatter; }
    bool has_pieces() const { return kind != CallKind::kAllReduce; }
  };

  void begin(const Call& call);
  void run(const Job& job);
  void copy_in(Chunk& chunk);
  void copy_in_shares(const Chunk& chunk);
  void copy_in_pieces(const Chunk& chunk);
  void reduce(Chunk& chunk);
  void start_exchange(Chunk& chunk);
  void finish_scatter(Chunk& chunk);
  void finish_gather(Chunk& chunk);
  void copy_out(const Chunk& chunk);
  int self() const { return notes_.rank(); }
  int num_ranks() const { return notes_.num_ranks(); }
  bool is_leader() const { return leader_mail_ != nullptr; }
  std::byte* result(const Chunk& chunk) const;
  /// Offsets of rank r's piece in bytes: in the tensor, and in a chunk, where pieces are ordered by
  /// host.
  int64_t offset_in_tensor(const Chunk& chunk, int r) const;
  int64_t offset_in_chunk(const Chunk& chunk, int r) const;

  P2pChannel& notes_;
  SharedMemoryGroup group_;
  Hosts hosts_;
  TreeParts tree_;
  std::vector<Part> parts_;
  std::vector<int> places_N_;  ///< position of each rank's piece in a chunk
  bool sends_direct_ = true;   ///< each leader sends to each other leader
  // Only on a leader, with exactly one of the last two.
  std::unique_ptr<MpiTransport> leader_transport_;
  std::unique_ptr<P2pChannel> leader_mail_;
  std::unique_ptr<ChunkedAllReduce> exchange_;
  std::unique_ptr<TreeExchange> tree_exchange_;
  Job job_;
  std::vector<const std::byte*> inputs_;
};

}  // namespace lockstep::dist::mpi
