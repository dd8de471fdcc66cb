#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <mpi.h>

#include "dist/cpu/rank_group.h"

/// MPI's communicators as groups of ranks and as transports, for dist/mpi only.
namespace lockstep::dist::mpi {

/// Throws Error(kUnavailable) naming the call and MPI's reason unless it succeeded.
void check_mpi(int code, std::string_view call);

/// Returns a new communicator of the same ranks. Collective.
MPI_Comm copy_of(MPI_Comm comm);

/// Returns a new communicator of the ranks that share a host with this one, in the same order.
MPI_Comm ranks_of_this_host(MPI_Comm comm, int rank);

/// Owner of a communicator, which it frees; MPI errors are returned as codes.
class OwnedComm {
 public:
  explicit OwnedComm(MPI_Comm comm);
  OwnedComm(OwnedComm&& other) noexcept : comm_(other.comm_) { other.comm_ = MPI_COMM_NULL; }
  OwnedComm& operator=(OwnedComm&&) = delete;
  ~OwnedComm();

  MPI_Comm get() const { return comm_; }
  int rank() const;
  int num_ranks() const;

 private:
  MPI_Comm comm_;
};

/// The ranks of an MPI communicator.
class MpiRanks final : public cpu::RankGroup {
 public:
  /// world_rank: rank of this process in the run, for messages.
  MpiRanks(MPI_Comm comm, int world_rank)
      : comm_(std::make_shared<OwnedComm>(comm)), world_rank_(world_rank) {}

  int rank() const override { return comm_->rank(); }
  int num_ranks() const override { return comm_->num_ranks(); }
  cpu::Peer self() const override;
  void all_gather(const void* own, int64_t num_bytes, void* all_N) const override;
  std::unique_ptr<cpu::RankGroup> split(int color, int key) const override;
  std::unique_ptr<cpu::RankGroup> ranks_of_this_host() const override;
  std::unique_ptr<cpu::Transport> make_transport() const override;

 private:
  std::shared_ptr<OwnedComm> comm_;
  int world_rank_;
};

}  // namespace lockstep::dist::mpi
