#pragma once

#include <memory>

#include "dist/cpu/rank_group.h"

namespace lockstep::pytorch {

/// Creates a transport between these ranks over TCP connections of its own. The group only
/// exchanges the addresses: messages of torch.distributed cannot be polled, as a Work of a send or
/// receive is complete only after wait().
///
/// Addresses are those of GLOO_SOCKET_IFNAME, which gloo uses too, else of all interfaces. A rank
/// connects to another when it first sends to it, one connection for each direction. Messages move
/// only during calls of the transport. If a connection ends, its pending messages fail after a
/// short grace, with an Error(kUnavailable) that names the rank.
std::unique_ptr<dist::cpu::Transport> make_socket_transport(
    std::unique_ptr<dist::cpu::RankGroup> ranks);

}  // namespace lockstep::pytorch
