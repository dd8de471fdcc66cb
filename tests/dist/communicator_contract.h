#pragma once

#include "dist/communicator.h"

namespace lockstep::tests {

/// Checks on this rank the contract of dist/communicator.h with GoogleTest expectations.
/// Collective; every backend runs it at every world size that it supports. Expected values are
/// closed forms, or sums computed here in rank order.
///
/// exact_order: the backend adds floats in rank order (CPU backends). Without it, floats are small
/// whole numbers only, of which every order has the same sum.
void check_communicator_contract(dist::Communicator& comm, bool exact_order);

/// One chunked message and more: tensors of several MiB. Apart, since some worlds are too slow for
/// it.
void check_large_tensors(dist::Communicator& comm);

}  // namespace lockstep::tests
