#pragma once

namespace lockstep::dist::mpi {

/// Sets, in the environment of this process, Open MPI's settings that suit Lockstep, where the user
/// has none of his own. MPI_Init reads them there, also in processes that mpirun did not start, so
/// this comes before it, while the process has one thread.
///
/// Ranks that all share one host, as the launcher's variables tell, look for no network card: that
/// is a third of a second of each start where there are many PCI devices or kinds of networks.
void prefer_open_mpi_settings();

}  // namespace lockstep::dist::mpi
