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

/// What packs gradients on a device; null where the CPU packs them, or nothing is packed: `auto`
/// would compare the times in which kernels are enqueued. Throws Error(kConfig) where
/// sparse_allreduce: always cannot be done.
std::shared_ptr<const DevicePacking> device_packing_for(Communicator& comm,
                                                        const SyncOptions& options);

/// Which buckets travel packed (dist/reducer/all_reduce_bucket.h). Equal on all ranks, as all are
/// told the same and what is measured is agreed.
///
/// `auto` measures both ways for each bucket after each change of masks (dist/reducer/autotuner.h)
/// and keeps the faster one. The verdict is state of the run, together with a digest of the
/// fingerprint for which it was found: a run that goes on in that fingerprint repeats the choice
/// and measures nothing. A trial under way is not saved; it begins anew.
class PackingChoice {
 public:
  /// mode: auto, always, never.
  explicit PackingChoice(std::string mode);

  /// New masks or other buckets: which buckets can be packed, and a digest of all that the times
  /// depend on (masks, buckets, ranks, wire type).
  void follow(std::vector<bool> can_pack, uint64_t fingerprint);
  /// Whether this bucket travels packed in the step under way.
  bool packs(size_t bucket) const;
  bool is_measuring() const { return autotuner_.is_running(); }

  /// The step's times, by bucket. Collective at the end of a trial. True if the choice may have
  /// changed.
  bool add_step(const std::vector<ItemSeconds>& buckets, Communicator& comm);

  /// `_lockstep/sync/packed`: live text, "<digest> <0 or 1 for each bucket>", empty before a
  /// verdict and where a save has none.
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
