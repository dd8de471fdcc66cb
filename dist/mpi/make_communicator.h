#pragma once

#include <memory>

#include "dist/communicator.h"
#include "dist/mpi/peer/mpi_handles.h"

namespace lockstep::dist::mpi {

class WindowKeeper;
struct CommunicatorOptions;

/// Creates the fastest communicator of these ranks: over a shared window if they are on one host
/// with enough space, else over messages. Its children are created in the same way. Collective.
std::unique_ptr<Communicator> make_communicator(OwnedComm comm, const CommunicatorOptions& options,
                                                const std::shared_ptr<WindowKeeper>& keeper);

}  // namespace lockstep::dist::mpi
