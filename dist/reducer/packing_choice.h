#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/device/device_packing.h"
#include "base/tensors/state_list.h"
#include "dist/communicator.h"
#include "dist/reducer/autotuner.h"
#include "dist/sync_options.h"

namespace lockstep::dist {

/// Returns the kernels that pack gradients on a device; null if the CPU packs them or nothing is
/// packed. `auto` gives null on a device, since it would measure only the time to enqueue kernels.
/// Throws Error(kConfig) if sparse_allreduce: always is not possible.
std::shared_ptr<const DevicePacking> device_packing_for(Communicator& comm,
                                                        const SyncOptions& options);

/// Choice of the buckets that travel packed (dist/reducer/all_reduce_bucket.h). Equal on all ranks:
/// the inputs are equal and the ranks agree on measurements.
///
/// `auto` measures both ways for each bucket after each change of masks (dist/reducer/autotuner.h)
/// and keeps the faster one. The result is part of the checkpoint, with a digest of the fingerprint
/// it belongs to. A resumed run with the same fingerprint repeats the choice without measuring. An
/// unfinished trial is not saved; it starts again.
class PackingChoice {
 public:
  /// mode: auto, always, never.
  explicit PackingChoice(std::string mode);

  /// Adopts new masks or buckets. can_pack: by bucket. fingerprint: digest of all that the times
  /// depend on (masks, buckets, ranks, wire type).
  void follow(std::vector<bool> can_pack, uint64_t fingerprint);
  /// True if this bucket travels packed in the current step.
  bool packs(size_t bucket) const;
  bool is_measuring() const { return autotuner_.is_running(); }

  /// Records the step's times, by bucket. Collective at the end of a trial. True if the choice may
  /// have changed.
  bool add_step(const std::vector<ItemSeconds>& buckets, Communicator& comm);

  /// Checkpoint state `_lockstep/sync/packed`: live text, "<digest> <0 or 1 for each bucket>".
  /// Empty before a result, and if a checkpoint has none.
  StateList state();

 private:
  bool adopt_stored();

  const std::string mode_;
  std::vector<bool> can_pack_, chosen_;
  uint64_t situation_ = 0;
  Autotuner autotuner_;
  std::string stored_;
};

}  // namespace lockstep::dist
