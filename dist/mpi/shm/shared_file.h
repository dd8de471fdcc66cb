#pragma once

#include <cstdint>

#include "dist/communicator.h"
#include "dist/mpi/peer/mpi_handles.h"

namespace lockstep::dist::mpi {

/// Memory that all ranks of `host` map: a file in window_folder(), whose name is gone when this
/// returns, so that nothing is left behind whatever ends the ranks later. What a rank that was
/// killed before left, a later call removes. All its pages are there, large
/// ones (2 MiB) where the kernel makes them (6.1 and later), and what a rank no longer uses is
/// unmapped without the others.
///
/// Nothing on all ranks, with the reason, if the folder has not the space beside reserved_bytes.
/// Collective.
SharedMemory map_shared_file(const OwnedComm& host, int64_t num_bytes, int64_t reserved_bytes);

}  // namespace lockstep::dist::mpi
