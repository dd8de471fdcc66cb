#pragma once

#include <cstdint>

#include "dist/communicator.h"
#include "dist/mpi/peer/mpi_handles.h"

namespace lockstep::dist::mpi {

/// Maps memory that all ranks of `host` share: a file in window_folder(), whose name is removed
/// before this returns. So nothing is left over, however the ranks end. Files of ranks that were
/// killed before that are removed by a later call. All pages are allocated, as large pages (2 MiB)
/// if the kernel supports it (6.1 and later). A rank may unmap memory without the others.
///
/// Returns null on all ranks, with the reason, if the folder lacks the space in addition to
/// reserved_bytes. Collective.
SharedMemory map_shared_file(const OwnedComm& host, int64_t num_bytes, int64_t reserved_bytes);

}  // namespace lockstep::dist::mpi
