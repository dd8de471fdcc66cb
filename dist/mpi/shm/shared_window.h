#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <mpi.h>

#include "dist/mpi/peer/mpi_handles.h"
#include "dist/mpi/shm/shared_memory_group.h"

namespace lockstep::dist::mpi {

/// MPI's windows of this process. They are freed together, when the world ends or free_from() is
/// called: freeing one is collective, and a communicator may be given up by one rank alone.
class WindowKeeper {
 public:
  /// num_ranks_here: of the world, on this host.
  explicit WindowKeeper(int num_ranks_here) : num_ranks_here_(num_ranks_here) {}
  WindowKeeper(const WindowKeeper&) = delete;
  WindowKeeper& operator=(const WindowKeeper&) = delete;
  /// Collective.
  ~WindowKeeper();

  void keep(MPI_Win window) { windows_.push_back(window); }
  size_t count() const { return windows_.size(); }
  /// Frees those that were kept when count() was `first`, and later. Collective.
  void free_from(size_t first);

  /// What MPI's own messages may still take of the shared memory: each rank has a file there whose
  /// pages come into being as they are used, and a rank that finds none left is killed.
  int64_t reserved_bytes() const;

 private:
  int num_ranks_here_;
  std::vector<MPI_Win> windows_;
};

/// Where MPI puts shared windows: OMPI_MCA_osc_sm_backing_directory, else /dev/shm.
std::string window_folder();

/// Bytes that files in `folder` may still take; 0 if there is no such folder.
int64_t free_bytes(const std::string& folder);

/// The largest slots, in bytes up to `largest`, with which a group fits into half of `free_bytes`
/// of shared memory (the other half is for a second group); 0 if not even small ones do.
int64_t fitting_slot_bytes(RoomLayout layout, int64_t largest, int64_t free_bytes);

/// The memory of a group.
struct SharedSegments {
  RoomLayout layout;
  std::vector<std::byte*> segments_M;
};

/// A shared window of the ranks of `host`, with slots of up to `largest_slot_bytes`. The ranks of
/// `all`, on all hosts, have slots of the same size, which is what all of them see free. Every page
/// is there when this returns: no later write can fail. Collective over `all`; returns nothing on
/// all ranks, and says why in one log line, if one host has not the space.
std::optional<SharedSegments> make_shared_segments(const OwnedComm& host, const OwnedComm& all,
                                                   RoomLayout layout, int64_t largest_slot_bytes,
                                                   WindowKeeper& keeper);

}  // namespace lockstep::dist::mpi
