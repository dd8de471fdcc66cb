#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dist/mpi/peer/collective_signature.h"
#include "dist/mpi/peer/mpi_handles.h"

namespace lockstep::dist::mpi {

/// Who a rank is, for messages about it. Travels between ranks as it lies in memory.
struct Peer {
  int32_t world_rank = 0;
  int32_t pid = 0;
  uint64_t start_time = 0;  ///< of the process; tells it from a later one with the same id
  uint64_t pid_space = 0;   ///< inode of the PID namespace in which `pid` counts; 0: not known
  std::array<char, 40> boot_id{};  ///< of the host's kernel since its boot, ends with 0
  std::array<char, 64> node{};     ///< host name, cut, ends with 0
};

/// This process, but for its rank.
Peer this_process();

/// What all members of a communicator say of themselves, by rank in it. Collective.
std::vector<Peer> gather_peers(const OwnedComm& comm);

/// True if the peer is seen to run as a process of this host; false if it cannot be seen from here
/// (another host or container, even one in which an equal pid began at the same tick) or is
/// gone.
bool is_running_here(const Peer& peer);

/// A rank that others waited for in vain.
struct Missing {
  Peer peer;
  bool is_gone = false;  ///< its process was here and has ended
};

/// Throws Error(kUnavailable) naming those whose process has ended if there are any, else
/// Error(kWatchdog): what was under way, who did not arrive, where they run, and for how long this
/// rank waited. in_chain: those may wait in turn for the one that hangs.
[[noreturn]] void throw_missing(const Call& call, std::span<const Missing> missing, double waited_s,
                                bool in_chain = false);

/// Logs a warning that says the same while the wait goes on: who is slow, and since when.
void tell_slow(const Call& call, std::span<const Missing> missing, double waited_s);

}  // namespace lockstep::dist::mpi
