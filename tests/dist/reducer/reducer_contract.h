#pragma once

#include "dist/communicator.h"

namespace lockstep::tests {

/// Trains a small network some steps in every way that a reducer knows and expects the bits of the
/// plainest one: overlap, bucket sizes, packing, wire types, choices by time, uneven samples,
/// unused parameters, micro-batches. Collective, on a CPU communicator; failures are reported to
/// GoogleTest.
void check_reducer_ways(dist::Communicator& comm);

}  // namespace lockstep::tests
