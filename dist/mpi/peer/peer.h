#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dist/mpi/peer/collective_signature.h"
#include "dist/mpi/peer/mpi_handles.h"

namespace lockstep::dist::mpi {

/// Identity of a rank, for messages. Sent between ranks in its memory layout.
struct Peer {
  int32_t world_rank = 0;
  int32_t pid = 0;
  uint64_t start_time = 0;  ///< of the process; distinguishes it from a later one with the same id
  uint64_t pid_space = 0;   ///< inode of the PID namespace of `pid`; 0: unknown
  std::array<char, 40> boot_id{};  ///< identifies the boot of the host's kernel, ends with 0
  std::array<char, 64> node{};     ///< host name, truncated, ends with 0
};

/// Returns this process, except for its rank.
Peer this_process();

/// Returns the identities of all members of a communicator, by rank in it. Collective.
std::vector<Peer> gather_peers(const OwnedComm& comm);

/// True if the peer is visible as a running process of this host. False if it is gone, or not
/// visible from here: on another host or in another container. Equal pids of two containers are
/// distinguished even if both started at the same tick.
bool is_running_here(const Peer& peer);

/// A rank that did not arrive in time.
struct Missing {
  Peer peer;
  bool is_gone = false;  ///< its process was visible here and has ended
};

/// Throws Error(kUnavailable) naming the ranks whose process has ended, if any. Otherwise throws
/// Error(kWatchdog) with the call, the ranks that did not arrive, their hosts, and the seconds that
/// this rank waited. in_chain: these ranks may themselves wait for the one that hangs.
[[noreturn]] void throw_missing(const Call& call, std::span<const Missing> missing, double waited_s,
                                bool in_chain = false);

/// Logs a warning with the same facts while the wait continues.
void tell_slow(const Call& call, std::span<const Missing> missing, double waited_s);

}  // namespace lockstep::dist::mpi
