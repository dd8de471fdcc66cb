#pragma once

#include <cstdint>
#include <vector>

#include "base/trace/span_ring.h"

/// Tracing of a process: spans of time by thread, for traces in the format of Chrome.
///
///   const trace::Span span("all_reduce", bucket);  // until the end of the block
///
/// Without a running trace or recent spans, nothing is kept, and a span costs one load.
namespace lockstep::trace {

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
