#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dist/communicator.h"
#include "dist/cpu/chunked_all_reduce.h"
#include "dist/cpu/p2p_channel.h"
#include "dist/cpu/p2p_communicator.h"
#include "dist/cpu/peer.h"
#include "dist/cpu/shared_memory_group.h"
#include "dist/cpu/tree_exchange.h"

/// Collectives between ranks on several hosts: placement, exchange between hosts, communicator.
namespace lockstep::dist::cpu {

/// Placement of a communicator's ranks on hosts, and the hosts' first ranks.
struct Hosts {
  std::vector<int> hosts_N;            ///< host of each rank, numbered by their first ranks
  std::unique_ptr<RankGroup> leaders;  ///< on the first rank of each host, in order; null on others

  int num_hosts() const;
  /// Returns the position of each rank if ranks are ordered by host: those of host 0 first, and so
  /// on.
  std::vector<int> places_N() const;
};

/// Determines the placement of the ranks of `all`. host: those of this host, in the same order.
/// Collective over `all`.
Hosts find_hosts(const RankGroup& all, const RankGroup& host);

/// Collectives of large tensors between ranks on several hosts, some of which run several ranks.
///
/// The ranks of a host add their nodes of the sum tree (docs/decisions/0011-sums-as-a-tree.md) in
/// shared memory. One of them, the leader, exchanges these partial sums with the leaders of the
/// other hosts. Then every rank copies its part of the result. Let each of H equal hosts hold a
/// whole node of the tree. Then a host sends S (H - 1) / H of S bytes for a reduce_scatter or an
/// all_gather, and twice that for an all_reduce. Stages of neighbouring chunks overlap.
///
/// More than CommunicatorOptions::direct_ranks hosts all-reduce along the tree
/// (dist/cpu/tree_exchange.h), if each has one part of it: 1, 2, 4, 8, ... ranks each, in order
/// (the last host may have fewer). They cannot scatter. Otherwise each leader sends to each other
/// leader.
///
/// Order and threads: those of a Communicator.
class HostExchange {
 public:
  /// notes: the channel between all ranks; outlives this.
  HostExchange(P2pChannel& notes, SharedMemoryGroup group, Hosts hosts,
               const CommunicatorOptions& options);

  /// Returns the layout of a group: slots for chunks in all stages, and rings for this host's
  /// partial sums and the result.
  static SegmentLayout layout_for(const std::vector<int>& hosts_N, int host);

  /// True if reduce_scatter() and all_gather() may be called with N pieces of such items. The same
  /// on all ranks.
  bool can_scatter(int64_t item_bytes) const;

  /// Implements the collective call.kind of a Communicator, for call.num_items > 0 of the tensor or
  /// of each of N pieces. all_reduce: `out` is `values`. The others require can_scatter().
  void run(const Call& call, const at::Tensor& values, const at::Tensor& out, ReduceOp op);

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

  void run_stages();
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
  std::unique_ptr<Transport> leader_transport_;
  std::unique_ptr<P2pChannel> leader_mail_;
  std::unique_ptr<ChunkedAllReduce> exchange_;
  std::unique_ptr<TreeExchange> tree_exchange_;
  Job job_;
  std::vector<const std::byte*> inputs_;
};

/// Collectives between ranks on several hosts, some of which run several ranks. Large tensors use a
/// HostExchange; all else is sent in messages between all ranks.
class HierarchicalCommunicator final : public P2pCommunicator {
 public:
  HierarchicalCommunicator(std::unique_ptr<Transport> transport, const CommunicatorOptions& options,
                           Split split_off, SharedMemoryGroup group, Hosts hosts)
      : P2pCommunicator(std::move(transport), options, std::move(split_off)),
        exchange_(channel_, std::move(group), std::move(hosts), options) {}

  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  double set_timeout(double timeout_s) override {
    exchange_.set_timeout(timeout_s);
    return P2pCommunicator::set_timeout(timeout_s);
  }

 private:
  /// True if N pieces like this one go through exchange_. The same on all ranks.
  bool goes_by_hosts(const at::Tensor& piece_K) const;

  HostExchange exchange_;
};

}  // namespace lockstep::dist::cpu
