#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/cpu/rank_group.h"
#include "dist/cpu/shared_memory_group.h"

/// Memory that the ranks of one host share.
namespace lockstep::dist::cpu {

/// Folder of the shared memory: OMPI_MCA_osc_sm_backing_directory, else /dev/shm.
std::string shared_memory_folder();

/// Bytes that files in `folder` may still use; 0 if there is no such folder.
int64_t free_bytes(const std::string& folder);

/// Returns the largest slot size in bytes, up to `largest`, with which a group fits into half of
/// `free_bytes` of shared memory. The other half is for a second group. 0 if not even small slots
/// fit.
int64_t fitting_slot_bytes(SegmentLayout layout, int64_t largest, int64_t free_bytes);

/// Memory of a group.
struct SharedSegments {
  SegmentLayout layout;
  std::vector<std::byte*> segments_M;
  std::shared_ptr<std::byte> memory;  ///< keeps the segments mapped
};

// In both functions all pages are allocated on return, so no later write can fail. Files of ranks
// that were killed before they removed the name are removed by a later call. A rank may unmap
// memory without the others. reserved_bytes: free space to leave to others.

/// Maps segments of the ranks of `host`, with slots of up to `largest_slot_bytes`. Ranks of `all`,
/// on all hosts, use the same slot size, the smallest that fits everywhere. If one host lacks the
/// space, returns nullopt on all ranks and logs the reason in one line. Collective over `all`.
std::optional<SharedSegments> make_shared_segments(const RankGroup& host, const RankGroup& all,
                                                   SegmentLayout layout, int64_t largest_slot_bytes,
                                                   int64_t reserved_bytes);

/// Maps memory of the ranks of `host`, as large pages (2 MiB) if the kernel supports it (6.1 and
/// later). Null on all ranks, with the reason, if the folder lacks the space. Collective.
SharedMemory map_shared_memory(const RankGroup& host, int64_t num_bytes, int64_t reserved_bytes);

}  // namespace lockstep::dist::cpu
