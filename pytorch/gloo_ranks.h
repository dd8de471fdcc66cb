#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "dist/cpu/rank_group.h"

namespace lockstep::pytorch {

/// Returns an error's text. The advice of a timeout, which is for the daemon, becomes "raise" that
/// argument of Python's.
std::string text_for_python(const Error& error, const std::string& argument);

/// Ranks of a process group of torch.distributed that gloo connects, or some of them. Their
/// exchanges are messages by way of the first one. Blocks as long as gloo's timeout.
class GlooRanks final : public dist::cpu::RankGroup {
 public:
  /// All ranks of the group. world_ranks_N: their ranks in the world.
  GlooRanks(c10::intrusive_ptr<c10d::Backend> gloo, std::vector<int64_t> world_ranks_N);

  int rank() const override { return rank_; }
  int num_ranks() const override { return static_cast<int>(members_.size()); }
  dist::cpu::Peer self() const override;
  void all_gather(const void* own, int64_t num_bytes, void* all_N) const override;
  std::unique_ptr<dist::cpu::RankGroup> split(int color, int key) const override;
  /// Ranks of one host have the same boot of the kernel and the same host name.
  std::unique_ptr<dist::cpu::RankGroup> ranks_of_this_host() const override;
  /// Separate TCP connections (pytorch/socket_transport.h).
  std::unique_ptr<dist::cpu::Transport> make_transport() const override;

 private:
  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::vector<int64_t> world_ranks_N_;
  std::vector<int> members_;  ///< ranks in gloo_
  int rank_ = 0;
};

/// Creates a transport between these ranks over TCP connections of its own. The group only
/// exchanges the addresses: messages of torch.distributed cannot be polled, as a Work of a send or
/// receive is complete only after wait().
///
/// Addresses are those of GLOO_SOCKET_IFNAME, which gloo uses too, else of all interfaces. A rank
/// connects to another when it first sends to it, one connection for each direction. Messages move
/// only during calls of the transport. If a connection ends, its pending messages fail after a
/// short grace, with an Error(kUnavailable) that names the rank.
std::unique_ptr<dist::cpu::Transport> make_socket_transport(
    std::unique_ptr<dist::cpu::RankGroup> ranks);

}  // namespace lockstep::pytorch
