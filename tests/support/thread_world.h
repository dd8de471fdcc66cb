#pragma once

#include <functional>

#include "dist/communicator.h"

namespace lockstep::tests {

/// Runs `body` on `world_size` threads, each with its own rank of one world, and returns when all
/// have ended.
///
/// If a rank throws, the others' next collective throws too, and run_ranks rethrows one error: that
/// of the lowest rank which failed by itself (not because a peer did). The verdict does not depend
/// on timing.
void run_ranks(int world_size, const std::function<void(dist::Communicator&)>& body);

}  // namespace lockstep::tests
