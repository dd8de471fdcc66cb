#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "dist/communicator.h"
#include "dist/mpi/host_exchange.h"
#include "dist/mpi/p2p/p2p_communicator.h"

namespace lockstep::dist::mpi {

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
