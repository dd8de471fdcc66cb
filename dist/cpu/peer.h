#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dist/communicator.h"

/// Basics of the CPU backends: calls to compare, formats of sums, identities of ranks, and waiting.
namespace lockstep::dist::cpu {

enum class CallKind : int32_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kBarrier,
  kSplit,
  kShareMemory
};

/// Signature of a rank's collective. Sent between ranks in its memory layout.
struct Call {
  CallKind kind = CallKind::kBarrier;
  int32_t dtype = 0;      ///< at::ScalarType
  int32_t argument = 0;   ///< operation or root; 0 if the kind has none
  int32_t reserved = 0;   ///< makes padding explicit: no byte of a message is undefined
  int64_t num_items = 0;  ///< of the tensor whose size is equal on all ranks
  uint64_t number = 0;    ///< of this communicator's calls, from 1

  bool operator==(const Call&) const = default;
};

/// Formats a call: "all_reduce of 1000 Float (sum), call 7".
std::string text_of(const Call& call);

/// Throws Error(kDisagree) naming both ranks and their calls, unless the calls are equal.
void require_same_call(const Call& mine, int rank, const Call& theirs, int their_rank);

/// Types and operation of a local sum.
struct Items {
  at::ScalarType dtype;
  int64_t item_bytes;
  ReduceOp op;
};

inline Items items_of(const at::Tensor& values, ReduceOp op) {
  return {values.scalar_type(), static_cast<int64_t>(values.itemsize()), op};
}

/// Types and operation of sums between ranks: the accumulator `in`, and `out` for the result.
struct SumFormat {
  at::ScalarType in, out;
  int64_t in_bytes, out_bytes;  ///< size of an item
  ReduceOp op;
  /// Pieces of a ChunkedAllReduce are proportional to the members' ranks; false: all are equal.
  bool by_ranks = false;

  static SumFormat of(const Items& items, bool by_ranks = false);
};

inline std::byte* bytes_of(const at::Tensor& values) {
  return static_cast<std::byte*>(values.mutable_data_ptr());
}

inline Call call_of(CallKind kind, const at::Tensor& values, int argument = 0) {
  return {kind, static_cast<int32_t>(values.scalar_type()), argument, 0, values.numel(), 0};
}

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

/// True if the peer is visible as a running process of this host. False if it is gone, or not
/// visible from here: on another host or in another container. Equal pids of two containers are
/// distinguished even if both started at the same tick.
bool is_running_here(const Peer& peer);

/// Returns a lost rank of which other processes have told, or that has ended here; nullopt: none.
/// Any thread that waits may call it.
using FindLost = std::function<std::optional<Peer>()>;

/// A rank that did not arrive in time.
struct Missing {
  Peer peer;
  bool is_gone = false;  ///< its process has ended, as seen here or told
};

/// Identities of the ranks that a channel or a group waits for, and the limits of its waits.
class PeerWatch {
 public:
  explicit PeerWatch(std::vector<Peer> peers);

  /// Sets the limits in seconds. A wait that takes slow_after_s is logged, once; one that takes
  /// timeout_s throws.
  void set_limits(double timeout_s, double slow_after_s) {
    timeout_s_ = timeout_s;
    slow_after_s_ = slow_after_s;
  }
  /// Sets timeout_s and returns the previous value.
  double set_timeout(double timeout_s) { return std::exchange(timeout_s_, timeout_s); }
  /// Sets a function that long waits ask. If it returns a rank, they throw at once: processes that
  /// wait for each other may all wait for that one.
  void set_find_lost(FindLost find_lost) { find_lost_ = std::move(find_lost); }
  /// Declares that a late rank may itself be blocked on another rank, outside this group of ranks.
  /// Error messages then say so.
  void expect_chains() { in_chains_ = true; }

 protected:
  /// Returns the facts for messages about rank r.
  Missing missing_rank(int r) const {
    return {peers_[r], seen_here_[r] && !is_running_here(peers_[r])};
  }
  /// Returns a lost rank that this process was told of.
  std::optional<Missing> told_lost() const {
    const std::optional<Peer> lost = find_lost_ ? find_lost_() : std::nullopt;
    return lost ? std::optional(Missing{*lost, /*is_gone=*/true}) : std::nullopt;
  }

  std::vector<Peer> peers_;
  std::vector<bool> seen_here_;  ///< true if the end of the rank's process is visible here
  double timeout_s_ = 300, slow_after_s_ = 60;
  bool in_chains_ = false;
  FindLost find_lost_;  ///< empty: all ranks are visible here, or none is told
};

/// Throws Error(kUnavailable) naming the ranks whose process has ended, if any. Otherwise throws
/// Error(kWatchdog) with the call, the ranks that did not arrive, their hosts, and the seconds that
/// this rank waited. in_chain: these ranks may themselves wait for the one that hangs.
[[noreturn]] void throw_missing(const Call& call, std::span<const Missing> missing, double waited_s,
                                bool in_chain = false);

/// Logs a warning with the same facts while the wait continues.
void tell_slow(const Call& call, std::span<const Missing> missing, double waited_s);

/// Back-off of a rank that polls for a message. For some microseconds it polls without a pause,
/// then it yields its core between polls. After that it sleeps for an eighth of the time waited so
/// far, up to a limit. The limit rises to a 64th of the time waited, at most a millisecond, so that
/// long waits take hardly any processor time. So it notices an event at most 12 % late.
class BackOff {
 public:
  using Clock = std::chrono::steady_clock;

  /// yield_for: time until the first sleep.
  explicit BackOff(Clock::duration yield_for,
                   Clock::duration longest_sleep = std::chrono::milliseconds(1))
      : yield_for_(yield_for), longest_sleep_(longest_sleep) {}

  Clock::duration waited() const { return Clock::now() - start_; }
  void pause() const;

 private:
  Clock::time_point start_ = Clock::now();
  Clock::duration yield_for_, longest_sleep_;
};

}  // namespace lockstep::dist::cpu
