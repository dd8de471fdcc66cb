#include "dist/cpu/peer.h"

#include <algorithm>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "dist/tensor_math.h"

namespace lockstep::dist::cpu {

// Calls: text and comparison of those that ranks exchange in notes and in shared memory.

static std::string_view name_of(CallKind kind) {
  constexpr std::array<std::string_view, 7> kNames{"all_reduce",  "reduce_scatter", "all_gather",
                                                   "broadcast",   "barrier",        "split",
                                                   "share_memory"};
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown call";
}

static std::string argument_text(const Call& call) {
  constexpr std::array<std::string_view, 3> kOps{"sum", "minimum", "maximum"};
  const auto index = static_cast<size_t>(call.argument);
  if (call.kind == CallKind::kAllReduce && index < kOps.size())
    return fmt::format(" ({})", kOps[index]);
  if (call.kind == CallKind::kBroadcast) return fmt::format(" (from rank {})", call.argument);
  return {};
}

std::string text_of(const Call& call) {
  if (call.kind == CallKind::kShareMemory)
    return fmt::format("share_memory of {} bytes, call {}", call.num_items, call.number);
  const bool has_items = call.kind != CallKind::kBarrier && call.kind != CallKind::kSplit;
  const std::string items =
      has_items ? fmt::format(" of {} {}", call.num_items,
                              c10::toString(static_cast<at::ScalarType>(call.dtype)))
                : std::string();
  return fmt::format("{}{}{}, call {}", name_of(call.kind), items, argument_text(call),
                     call.number);
}

void require_same_call(const Call& mine, int rank, const Call& theirs, int their_rank) {
  if (mine == theirs) return;
  throw Error(ExitCode::kDisagree, "dist.cpu",
              fmt::format("ranks make different calls: rank {}: {}; rank {}: {}. All ranks need "
                          "the same run file, data and program",
                          rank, text_of(mine), their_rank, text_of(theirs)));
}

SumFormat SumFormat::of(const Items& items, bool by_ranks) {
  const at::ScalarType wide = accumulator_of(items.dtype);
  return {wide,     items.dtype, static_cast<int64_t>(c10::elementSize(wide)), items.item_bytes,
          items.op, by_ranks};
}

// Peers: the processes of ranks are identified, so that a rank whose process has ended is reported
// at once, without waiting for a timeout. Works only within one host and PID namespace.

namespace {

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
  peer.start_time = static_cast<uint64_t>(start_ticks_of(peer.pid));
  peer.pid_space = own_space().inode;
  peer.boot_id = own_space().boot_id;
  static_cast<void>(gethostname(peer.node.data(), peer.node.size() - 1));
  return peer;
}

bool is_running_here(const Peer& peer) {
  return peer.pid_space == own_space().inode && peer.boot_id == own_space().boot_id &&
         peer.start_time != 0 && static_cast<uint64_t>(start_ticks_of(peer.pid)) == peer.start_time;
}

PeerWatch::PeerWatch(std::vector<Peer> peers) : peers_(std::move(peers)) {
  for (const Peer& peer : peers_) seen_here_.push_back(is_running_here(peer));
}

void throw_missing(const Call& call, std::span<const Missing> missing, double waited_s,
                   bool in_chain) {
  check(!missing.empty(), "no rank is missing");
  if (const std::string gone = names_of(missing, true); !gone.empty())
    throw Error(ExitCode::kUnavailable, "dist.cpu",
                fmt::format("{}: {} ended before joining it: a peer is lost", text_of(call), gone));
  throw Error(ExitCode::kWatchdog, "dist.cpu",
              fmt::format("{}: waited {:.1f} s for {}, which did not arrive: it hangs{}, or its "
                          "host cannot be reached. If that is expected, raise sync.timeout_s, and "
                          "for a save checkpoint.timeout_s too",
                          text_of(call), waited_s, names_of(missing, false),
                          in_chain ? " or waits for a rank that hangs" : ""));
}

void tell_slow(const Call& call, std::span<const Missing> missing, double waited_s) {
  if (missing.empty()) return;
  log::warning("dist.cpu", fmt::format("{}: has waited {:.1f} s for {}, which is slow or hangs",
                                       text_of(call), waited_s, names_of(missing, false)));
}

constexpr auto kSpinBeforeSleep = std::chrono::microseconds(20);
constexpr BackOff::Clock::duration kLongestSleep = std::chrono::milliseconds(1);
constexpr BackOff::Clock::duration kShortestSleep = std::chrono::microseconds(20);

void BackOff::pause() const {
  const Clock::duration so_far = waited();
  if (so_far < kSpinBeforeSleep) return;
  const auto longest = std::max(longest_sleep_, std::min(so_far / 64, kLongestSleep));
  // A yield lets other threads run first; a sleep frees the core for longer.
  if (so_far < yield_for_)
    sched_yield();
  else
    std::this_thread::sleep_for(std::clamp(so_far / 8, kShortestSleep, longest));
}

}  // namespace lockstep::dist::cpu
