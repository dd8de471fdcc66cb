#pragma once

#include "dist/mpi/world.h"

namespace lockstep::tests {

/// MPI in a program of lockstep_rank_test; its main() starts it before the first test.
dist::mpi::World& mpi_world();

}  // namespace lockstep::tests
