#pragma once

namespace lockstep::dist::mpi {

/// Sets Open MPI's settings for Lockstep in the environment of this process, unless the user has
/// set them. MPI_Init reads them, also in processes that mpirun did not start. So call this before
/// MPI_Init, while the process has one thread.
///
/// Ranks that all share one host, according to the launcher's variables, do not search for network
/// cards. The search takes a third of a second of each start on hosts with many PCI devices or
/// kinds of networks.
void prefer_open_mpi_settings();

}  // namespace lockstep::dist::mpi
