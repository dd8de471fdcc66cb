#pragma once

#include "dist/communicator.h"

namespace lockstep::tests {

/// What dist/communicator.h promises, checked on this rank with GoogleTest expectations.
/// Collective; every backend runs it at every world size it has. Expected values are closed forms,
/// or sums written out here in rank order.
///
/// exact_order: the backend adds floats in rank order (CPU backends). Without it, floats are small
/// whole numbers only, of which every order has the same sum.
void check_communicator_contract(dist::Communicator& comm, bool exact_order);

/// One chunked message and more: tensors of several MiB. Apart, since some worlds are too slow for
/// it.
void check_large_tensors(dist::Communicator& comm);

}  // namespace lockstep::tests
