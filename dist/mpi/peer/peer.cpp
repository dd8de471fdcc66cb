// Identifies the processes of ranks, so that a rank whose process has ended is reported at once,
// without waiting for a timeout. Works only within one host and PID namespace.
#include "dist/mpi/peer/peer.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

namespace lockstep::dist::mpi {
namespace {

constexpr int kFieldsToStart = 20;  // of /proc/PID/stat: from the state, field 3, to field 22

/// Returns the start of the process, in ticks since the host's boot; nullopt if it is gone or a
/// zombie. Its name, in brackets, may contain any character, so fields are counted after it.
std::optional<uint64_t> start_time_of(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(name_end + 1));
  std::vector<std::string> field(kFieldsToStart);
  for (std::string& text : field) fields >> text;
  if (!fields || field.front() == "Z" || field.front() == "X") return std::nullopt;
  return std::stoull(field.back());
}

/// A space in which a process id denotes one process: PID namespace and boot.
struct PidSpace {
  uint64_t inode = 0;
  std::array<char, 40> boot_id{};

  static PidSpace read() {
    PidSpace here;
    struct stat space {};
    if (::stat("/proc/self/ns/pid", &space) == 0) here.inode = space.st_ino;
    std::ifstream("/proc/sys/kernel/random/boot_id")
        .getline(here.boot_id.data(), static_cast<std::streamsize>(here.boot_id.size()));
    return here;
  }
};

const PidSpace& own_space() {
  static const PidSpace here = PidSpace::read();
  return here;
}

std::string names_of(std::span<const Missing> missing, bool gone) {
  std::string names;
  for (const Missing& one : missing)
    if (one.is_gone == gone)
      names += fmt::format("{}rank {} (process {} on {})", names.empty() ? "" : ", ",
                           one.peer.world_rank, one.peer.pid, one.peer.node.data());
  return names;
}

}  // namespace

// Start time and namespace make a process id unique; ids alone are reused.
Peer this_process() {
  Peer peer;
  peer.pid = getpid();
  peer.start_time = start_time_of(peer.pid).value_or(0);
  peer.pid_space = own_space().inode;
  peer.boot_id = own_space().boot_id;
  static_cast<void>(gethostname(peer.node.data(), peer.node.size() - 1));
  return peer;
}

std::vector<Peer> gather_peers(const OwnedComm& comm) {
  Peer self = this_process();
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &self.world_rank), "MPI_Comm_rank");
  std::vector<Peer> peers(comm.num_ranks());
  check_mpi(MPI_Allgather(&self, sizeof(Peer), MPI_BYTE, peers.data(), sizeof(Peer), MPI_BYTE,
                          comm.get()),
            "MPI_Allgather");
  return peers;
}

bool is_running_here(const Peer& peer) {
  return peer.pid_space == own_space().inode && peer.boot_id == own_space().boot_id &&
         start_time_of(peer.pid) == peer.start_time;
}

void throw_missing(const Call& call, std::span<const Missing> missing, double waited_s,
                   bool in_chain) {
  check(!missing.empty(), "nobody is missing");
  if (const std::string gone = names_of(missing, true); !gone.empty())
    throw Error(ExitCode::kUnavailable, "dist.mpi",
                fmt::format("{}: {} ended before it: a peer is lost", text_of(call), gone));
  throw Error(
      ExitCode::kWatchdog, "dist.mpi",
      fmt::format("{}: waited {:.1f} s for {}, which did not arrive: it hangs{}, or its host "
                  "cannot be reached. Where that is no fault, raise sync.timeout_s, and for a save "
                  "checkpoint.timeout_s too",
                  text_of(call), waited_s, names_of(missing, false),
                  in_chain ? " or waits for one that does" : ""));
}

void tell_slow(const Call& call, std::span<const Missing> missing, double waited_s) {
  if (missing.empty()) return;
  log::warning("dist.mpi", fmt::format("{}: has waited {:.1f} s for {}: slow, or it hangs",
                                       text_of(call), waited_s, names_of(missing, false)));
}

}  // namespace lockstep::dist::mpi
