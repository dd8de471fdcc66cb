#pragma once

#include <array>
#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "dist/mpi/p2p/chunked_all_reduce.h"
#include "dist/mpi/p2p/mpi_transport.h"
#include "dist/mpi/p2p/p2p_channel.h"
#include "dist/mpi/p2p/p2p_communicator.h"
#include "dist/mpi/p2p/tree_exchange.h"
#include "dist/mpi/peer/mpi_handles.h"
#include "dist/mpi/shm/shared_memory_group.h"

namespace lockstep::dist::mpi {

/// Where the ranks of a communicator run, and the messages between the first ranks of all hosts.
struct Hosts {
  std::vector<int> hosts_N;            ///< host of each rank, numbered by their first ranks
  std::unique_ptr<OwnedComm> leaders;  ///< on the first rank of each host, in order; else empty
};

/// Collectives between ranks on several hosts, some of which hold several ranks.
///
/// all_reduce of large tensors: the ranks of a host add up what they hold of the sum tree
/// (docs/decisions/0011-sums-as-a-tree.md) in memory that they share, one of them, the leader,
/// exchanges these partial sums with the other hosts' leaders, and all take the result. So of S
/// bytes a host with a whole node of the tree sends 2 S (H - 1) / H over H hosts, whatever the
/// number of its ranks. Chunks go through six stages, in which neighbours overlap. Everything else
/// travels in messages between all ranks.
///
/// More than MessageOptions::direct_ranks hosts exchange along the tree
/// (dist/mpi/p2p/tree_exchange.h) if each has one part of it: 1, 2, 4, 8, ... ranks each, in order
/// (the last host may have fewer). Else each leader sends to each other.
class HierarchicalCommunicator final : public Communicator {
 public:
  HierarchicalCommunicator(std::unique_ptr<P2pCommunicator> flat, SharedMemoryGroup group,
                           Hosts hosts, const MessageOptions& options);

  int rank() const override { return flat_->rank(); }
  int world_size() const override { return flat_->world_size(); }
  at::Device device() const override { return at::kCPU; }

  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override {
    return flat_->reduce_scatter(std::move(out_K), std::move(values_NK));
  }
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override {
    return flat_->all_gather(std::move(out_NK), std::move(values_K));
  }
  void broadcast(at::Tensor values_K, int root) override {
    flat_->broadcast(std::move(values_K), root);
  }
  void barrier() override { flat_->barrier(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return flat_->split(color, key);
  }
  int64_t bytes_reduced() const override { return bytes_reduced_ + flat_->bytes_reduced(); }
  double set_timeout(double timeout_s) override;

  /// What a group needs: slots for chunks in all stages, and rings for this host's partial sums and
  /// the result.
  static RoomLayout layout_for(const std::vector<int>& hosts_N, int host);

 private:
  static constexpr int kStages = 6;

  struct Chunk;
  struct Part {  ///< a node of the sum tree that this host holds
    std::vector<int> members;
    std::vector<int> first_ranks;  ///< the members' ranks, and the node's end
  };

  void reduce(std::byte* values, int64_t num_items, const Items& items);
  void copy_in(Chunk& chunk);
  void reduce(Chunk& chunk);
  void start_scatter(Chunk& chunk);
  void finish_scatter(Chunk& chunk);
  void finish_gather(Chunk& chunk);
  void copy_out(const Chunk& chunk);
  bool is_leader() const { return leader_mail_ != nullptr; }
  std::byte* result(const Chunk& chunk) const;

  SharedMemoryGroup group_;
  Hosts hosts_;
  TreeParts tree_;
  std::vector<Part> parts_;
  // Only on a leader; of the last two one.
  std::unique_ptr<MpiTransport> leader_transport_;
  std::unique_ptr<P2pChannel> leader_mail_;
  std::unique_ptr<ChunkedAllReduce> exchange_;
  std::unique_ptr<TreeExchange> tree_exchange_;
  ChunkedAllReduce::Format format_{};
  int64_t bytes_reduced_ = 0;
  std::vector<const std::byte*> inputs_;
  std::unique_ptr<P2pCommunicator> flat_;
};

}  // namespace lockstep::dist::mpi
