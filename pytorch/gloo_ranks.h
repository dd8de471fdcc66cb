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

}  // namespace lockstep::pytorch
