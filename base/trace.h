#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

/// Tracing of a process: spans of time by thread, for traces in the format of Chrome. Other
/// processes can read the newest spans from a ring.
///
///   const trace::Span span("all_reduce", bucket);  // until the end of the block
///
/// Without a running trace or recent spans, nothing is kept, and a span costs one load.
namespace lockstep::trace {

constexpr int64_t kNumRecent = 1000;

/// Span in memory that other processes read.
struct RecentSpan {
  std::array<char, 32> name{};       ///< truncated, zero-terminated
  int64_t detail = -1;               ///< for instance the bucket; -1: none
  int64_t begin_ns = 0, end_ns = 0;  ///< since 1970; the end is 0 until the span ends
  int64_t thread = 0;                ///< the system's thread id

  std::string_view text() const { return name.data(); }
};

/// Newest kNumRecent spans of this process, in memory that is not a file in any file system. Other
/// processes of the same user on this host can read it, even while this process is stopped. It
/// disappears with the process. One caller at a time.
class SpanRing {
 public:
  /// Creates the memory. If the system provides none, only this process can read the ring.
  SpanRing();
  SpanRing(const SpanRing&) = delete;
  SpanRing& operator=(const SpanRing&) = delete;

  /// Begins a span and returns its number.
  int64_t begin(const char* name, const RecentSpan& span);
  void end(int64_t number, int64_t end_ns);
  /// Returns the spans, oldest first.
  std::vector<RecentSpan> spans() const;
  /// Hides all earlier spans.
  void forget();
  /// Returns a random number that identifies this ring among those of all processes on all hosts.
  uint64_t token() const;

  /// Returns the ring of another process, which may be running. nullopt if this host has no such
  /// process or it cannot be read from here.
  static std::optional<std::vector<RecentSpan>> of_process(int64_t pid, uint64_t token);

 private:
  struct Memory;
  Memory* memory_;  ///< mapped until the process ends
};

/// Returns this thread's newest span of `spans` (oldest first) that has not ended; an empty name if
/// there is none.
RecentSpan open_span(const std::vector<RecentSpan>& spans, int64_t thread);

struct SpanRecord {
  const char* name = "";             ///< a string literal
  int64_t detail = -1;               ///< for instance the bucket; -1: none
  int64_t begin_ns = 0, end_ns = 0;  ///< since 1970
  int64_t thread = 0;                ///< the system's thread id
  const char* thread_name = "";      ///< a string literal; empty: not named
};

/// Sets the calling thread's name in traces and in the system's tools: a string literal of at most
/// 15 characters. Not for the main thread, whose name is that of the process.
void name_thread(const char* name);

/// Span of time until the end of its scope. Thread-safe.
class Span {
 public:
  explicit Span(const char* name, int64_t detail = -1);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  SpanRecord record_;  // begin_ns is 0 if nothing is kept
  int64_t number_ = -1;
};

/// Starts a trace: spans are kept from now on. One trace at a time.
void start();
/// Ends the trace. Returns the spans of all threads that have ended since start(), in the order of
/// their ends. Then come those that have not ended, with the present time as their end.
std::vector<SpanRecord> stop();

/// Keeps the newest kNumRecent spans from now on, including unfinished ones.
void keep_recent();
/// Returns these spans, oldest first.
std::vector<RecentSpan> recent();
/// Hides all earlier spans, because the next ones belong to another run.
void forget_recent();
/// Starts keeping recent spans and returns the token by which others find them
/// (SpanRing::of_process).
uint64_t recent_token();

}  // namespace lockstep::trace
