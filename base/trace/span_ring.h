#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep::trace {

constexpr int64_t kNumRecent = 1000;

/// A span as it lies in memory that other processes read.
struct RecentSpan {
  std::array<char, 32> name{};       ///< cut, ends with 0
  int64_t detail = -1;               ///< which bucket, for instance; -1: none
  int64_t begin_ns = 0, end_ns = 0;  ///< since 1970; the end is 0 where it has not come
  int64_t thread = 0;                ///< the system's number

  std::string_view text() const { return name.data(); }
};

/// The newest kNumRecent spans of this process, in memory without a name in any file system, which
/// other processes of the same user on this host can read, also while this one is stopped; it is
/// gone with the process. Threads: one caller at a time.
class SpanRing {
 public:
  /// Where the system gives no such memory, only this process can read it.
  SpanRing();
  SpanRing(const SpanRing&) = delete;
  SpanRing& operator=(const SpanRing&) = delete;

  /// Returns the span's number.
  int64_t begin(const char* name, const RecentSpan& span);
  void end(int64_t number, int64_t end_ns);
  /// Oldest first.
  std::vector<RecentSpan> spans() const;
  /// None of those before is told any more.
  void forget();
  /// Tells this ring from that of any other process, here or on another host.
  uint64_t token() const;

  /// What the ring of another process holds, which may go on meanwhile; nothing where there is no
  /// such process on this host, or it cannot be read from here.
  static std::optional<std::vector<RecentSpan>> of_process(int64_t pid, uint64_t token);

 private:
  struct Memory;
  Memory* memory_;  ///< mapped until the process ends
};

/// Of `spans` (oldest first) the newest of this thread that has not ended; an empty name if there
/// is none.
RecentSpan open_span(const std::vector<RecentSpan>& spans, int64_t thread);

}  // namespace lockstep::trace
