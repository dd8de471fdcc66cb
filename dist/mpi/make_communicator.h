#pragma once

#include <memory>

#include "dist/communicator.h"
#include "dist/mpi/peer/mpi_handles.h"

namespace lockstep::dist::mpi {

class WindowKeeper;
struct CommunicatorOptions;

/// The fastest communicator of these ranks: over a shared window where they are on one host and it
/// has the space, else over messages. Its children come from here too. Collective.
std::unique_ptr<Communicator> make_communicator(OwnedComm comm, const CommunicatorOptions& options,
                                                const std::shared_ptr<WindowKeeper>& keeper);

}  // namespace lockstep::dist::mpi
