#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "dist/communicator.h"
#include "dist/mpi/peer/mpi_handles.h"
#include "dist/mpi/shm/shared_memory_group.h"

namespace lockstep::dist::mpi {

/// Makes the children of a communicator: like make_communicator(), with its options. Collective.
using MakeCommunicator = std::function<std::unique_ptr<Communicator>(OwnedComm comm)>;

/// Collectives between ranks of one host, over memory that they share. Every call is done when it
/// returns.
///
/// A tensor goes through the slots of a SharedMemoryGroup in chunks of a slot, each chunk in three
/// stages: every rank brings the shares of the others, reduces its own share over all ranks in rank
/// order, and takes the shares that the others reduced. The stages of neighbouring chunks overlap,
/// so that a rank rarely waits; chunks are small enough for what is brought to be read from a
/// cache. Of S bytes a rank reads and writes S (1 - 1/M) bytes of shared memory and S of its own.
class ShmCommunicator final : public Communicator {
 public:
  /// reserved_bytes: of shared memory, for others (WindowKeeper).
  ShmCommunicator(OwnedComm comm, SharedMemoryGroup group, MakeCommunicator make,
                  int64_t reserved_bytes);

  int rank() const override { return group_.self(); }
  int world_size() const override { return group_.num_members(); }
  at::Device device() const override { return at::kCPU; }

  [[nodiscard]] std::unique_ptr<Work> all_reduce(at::Tensor values_K, ReduceOp op) override;
  [[nodiscard]] std::unique_ptr<Work> reduce_scatter(at::Tensor out_K,
                                                     at::Tensor values_NK) override;
  [[nodiscard]] std::unique_ptr<Work> all_gather(at::Tensor out_NK, at::Tensor values_K) override;
  void broadcast(at::Tensor values_K, int root) override;
  void barrier() override;
  SharedMemory share_memory(int64_t num_bytes) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  int64_t bytes_reduced() const override { return bytes_reduced_; }
  double set_timeout(double timeout_s) override { return group_.set_timeout(timeout_s); }

 private:
  struct Chunk;

  void begin(CallKind kind, const at::Tensor& values_K, int argument = 0);
  void meet_before_mpi(const Call& call);
  /// One stage for all: copy_in(begin, items, slot) fills the own slot, read(begin, items, slot
  /// index) looks at everyone's. At least once, also for no items.
  template <typename Bring, typename Read>
  void exchange(int64_t num_items, int64_t chunk_items, const Bring& copy_in, const Read& read);

  void reduce_whole(std::byte* values, int64_t num_items, const Items& items);
  void reduce_by_shares(std::byte* values, int64_t num_items, const Items& items);
  /// Where the result of rank m's share goes: over what another rank brought of it. Lines that were
  /// just read are in the cache, those of a slot of its own would have to be fetched to be written.
  std::byte* result_slot(int m, int slot) const;
  void bring_shares(Chunk& chunk);
  void reduce_share(Chunk& chunk, const Items& items);
  void take_shares(const Chunk& chunk);
  /// Reduces items at `offset_bytes` of everyone's slot, `own` instead of the own slot.
  void reduce_slots(int slot, int64_t offset_bytes, const std::byte* own, std::byte* out,
                    std::byte* also_out, int64_t num_items, const Items& items);

  OwnedComm comm_;
  SharedMemoryGroup group_;
  MakeCommunicator make_;
  int64_t reserved_bytes_;
  int64_t bytes_reduced_ = 0;
  std::vector<const std::byte*> runs_M_;  ///< kept so that a steady step allocates nothing
};

}  // namespace lockstep::dist::mpi
