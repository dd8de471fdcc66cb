#pragma once

#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "dist/cpu/make_communicator.h"
#include "dist/cpu/peer.h"
#include "dist/cpu/shared_memory_group.h"

namespace lockstep::dist::cpu {

/// Collectives between ranks of one host over shared memory. Every call but begin_all_reduce() is
/// done when it returns.
///
/// A tensor passes through the slots of a SharedMemoryGroup in chunks of one slot. A chunk has
/// three stages. Every rank copies in the other ranks' shares, and reduces its own share over all
/// ranks in rank order. Then it copies out the shares that the others reduced. Stages of
/// neighbouring chunks overlap, so that a rank rarely waits. Chunks are small enough to be read
/// from a cache. For S bytes a rank reads and writes S (1 - 1/M) bytes of shared memory and S of
/// its own.
class ShmCommunicator final : public Communicator {
 public:
  /// reserved_bytes: shared memory to leave for others.
  ShmCommunicator(std::unique_ptr<RankGroup> ranks, SharedMemoryGroup group, MakeCommunicator make,
                  int64_t reserved_bytes);

  int rank() const override { return group_.self(); }
  int world_size() const override { return group_.num_members(); }
  at::Device device() const override { return at::kCPU; }

  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> begin_all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  void broadcast(at::Tensor values_K, int root) override;
  void barrier() override { meet({.kind = CallKind::kBarrier}); }
  SharedMemory share_memory(int64_t num_bytes) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  int64_t bytes_reduced() const override { return bytes_reduced_; }
  double set_timeout(double timeout_s) override { return group_.set_timeout(timeout_s); }

 private:
  struct Chunk;
  class Begun;

  /// Returns once every rank has made this call.
  void meet(const Call& call);
  /// Runs one stage for all: copy_in(begin, items, slot) fills the own slot, read(begin, items,
  /// slot index) reads all slots. Runs at least once, also for no items.
  template <typename CopyIn, typename Read>
  void exchange(int64_t num_items, int64_t chunk_items, const CopyIn& copy_in, const Read& read);

  /// True if every rank reduces the whole of a tensor of so many bytes.
  bool is_one_stage(int64_t num_bytes) const;
  void begin_whole(Chunk& chunk);
  void reduce_whole(const Chunk& chunk, const Items& items);
  void reduce_by_shares(std::byte* values, int64_t num_items, const Items& items);
  /// Returns the slot for the result of rank m's share: over another rank's copy of that share.
  /// These cache lines were just read; lines of a separate slot would have to be fetched before the
  /// write.
  std::byte* result_slot(int m, int slot) const;
  void copy_in_shares(Chunk& chunk);
  void reduce_share(Chunk& chunk, const Items& items);
  void take_shares(const Chunk& chunk);
  /// Reduces items at `offset_bytes` of all slots, with `own` instead of the own slot.
  void reduce_slots(int slot, int64_t offset_bytes, const std::byte* own, std::byte* out,
                    std::byte* also_out, int64_t num_items, const Items& items);

  std::unique_ptr<RankGroup> ranks_;
  SharedMemoryGroup group_;
  MakeCommunicator make_;
  int64_t reserved_bytes_;
  int64_t bytes_reduced_ = 0;
  std::vector<const std::byte*> runs_M_;  ///< a member, so that a steady step allocates nothing
};

}  // namespace lockstep::dist::cpu
