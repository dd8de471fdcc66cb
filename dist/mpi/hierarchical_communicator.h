#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dist/communicator.h"
#include "dist/mpi/chunked_all_reduce.h"
#include "dist/mpi/p2p_channel.h"
#include "dist/mpi/p2p_communicator.h"
#include "dist/mpi/peer.h"
#include "dist/mpi/shared_memory_group.h"
#include "dist/mpi/tree_exchange.h"

/// Collectives between ranks on several hosts: placement, exchange between hosts, communicator.
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
/// (dist/mpi/tree_exchange.h), if each has one part of it: 1, 2, 4, 8, ... ranks each, in order
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

/// Collectives between ranks on several hosts, some of which run several ranks. Large tensors use a
/// HostExchange; all else is sent in messages between all ranks.
class HierarchicalCommunicator final : public Communicator {
 public:
  HierarchicalCommunicator(std::unique_ptr<P2pCommunicator> flat, SharedMemoryGroup group,
                           Hosts hosts, const MessageOptions& options)
      : flat_(std::move(flat)),
        exchange_(flat_->channel(), std::move(group), std::move(hosts), options) {}

  int rank() const override { return flat_->rank(); }
  int world_size() const override { return flat_->world_size(); }
  at::Device device() const override { return at::kCPU; }

  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  void broadcast(at::Tensor values_K, int root) override {
    flat_->broadcast(std::move(values_K), root);
  }
  void barrier() override { flat_->barrier(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return flat_->split(color, key);
  }
  int64_t bytes_reduced() const override { return bytes_reduced_ + flat_->bytes_reduced(); }
  double set_timeout(double timeout_s) override {
    exchange_.set_timeout(timeout_s);
    return flat_->set_timeout(timeout_s);
  }

 private:
  /// True if N pieces like this one go through exchange_. The same on all ranks.
  bool goes_by_hosts(const at::Tensor& piece_K) const;

  std::unique_ptr<P2pCommunicator> flat_;
  HostExchange exchange_;  ///< after the channel that it uses
  int64_t bytes_reduced_ = 0;
};

}  // namespace lockstep::dist::mpi
