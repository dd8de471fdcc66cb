#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <mpi.h>

#include "dist/communicator.h"
#include "dist/mpi/peer.h"
#include "dist/mpi/shared_memory_group.h"

/// Memory that the ranks of one host share: MPI windows and mapped files.
namespace lockstep::dist::mpi {

/// MPI's windows of this process. They are freed together, when the world ends or by free_from().
/// Freeing is collective, but one rank alone may destroy its communicator.
class WindowKeeper {
 public:
  /// num_ranks_here: the world's ranks on this host.
  explicit WindowKeeper(int num_ranks_here) : num_ranks_here_(num_ranks_here) {}
  WindowKeeper(const WindowKeeper&) = delete;
  WindowKeeper& operator=(const WindowKeeper&) = delete;
  /// Frees all windows. Collective.
  ~WindowKeeper();

  void keep(MPI_Win window) { windows_.push_back(window); }
  size_t count() const { return windows_.size(); }
  /// Frees the windows that were kept when count() was `first` or more. Collective.
  void free_from(size_t first);

  /// Shared memory that MPI's own messages may still need. Each rank has a file there whose pages
  /// are allocated at first use, and a rank that gets no page is killed.
  int64_t reserved_bytes() const;

 private:
  int num_ranks_here_;
  std::vector<MPI_Win> windows_;
};

/// Folder of MPI's shared windows: OMPI_MCA_osc_sm_backing_directory, else /dev/shm.
std::string window_folder();

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
};

/// Allocates a shared window of the ranks of `host`, with slots of up to `largest_slot_bytes`.
/// Ranks of `all`, on all hosts, use the same slot size, the smallest that fits everywhere. All
/// pages are allocated on return, so no later write can fail. Collective over `all`. If one host
/// lacks the space, returns nullopt on all ranks and logs the reason in one line.
std::optional<SharedSegments> make_shared_segments(const OwnedComm& host, const OwnedComm& all,
                                                   SegmentLayout layout, int64_t largest_slot_bytes,
                                                   WindowKeeper& keeper);

/// Maps memory that all ranks of `host` share: a file in window_folder(), whose name is removed
/// before this returns. Files of ranks that were killed before that are removed by a later call.
/// All pages are allocated, as large pages (2 MiB) if the kernel supports it (6.1 and later). A
/// rank may unmap memory without the others. Returns null on all ranks, with the reason, if the
/// folder lacks the space in addition to reserved_bytes. Collective.
SharedMemory map_shared_file(const OwnedComm& host, int64_t num_bytes, int64_t reserved_bytes);

}  // namespace lockstep::dist::mpi
