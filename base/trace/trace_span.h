#pragma once

#include <cstdint>
#include <vector>

#include "base/trace/span_ring.h"

/// What a process does when: spans of time by thread, for traces in the format of Chrome.
///
///   const trace::Span span("all_reduce", bucket);  // until the end of the block
///
/// Nothing is kept, and a span costs a load, unless a trace is under way or the recent ones are
/// kept.
namespace lockstep::trace {

struct SpanRecord {
  const char* name = "";             ///< a literal
  int64_t detail = -1;               ///< which bucket, for instance; -1: none
  int64_t begin_ns = 0, end_ns = 0;  ///< since 1970
  int64_t thread = 0;                ///< the system's number
  const char* thread_name = "";      ///< a literal; empty: it was never named
};

/// The calling thread's name in traces and in the system's tools: a literal of at most 15
/// characters. Not for the main thread, whose name is that of the process.
void name_thread(const char* name);

/// Threads: any.
class Span {
 public:
  explicit Span(const char* name, int64_t detail = -1);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  SpanRecord record_;  // begin_ns is 0 where nothing is kept
  int64_t number_ = -1;
};

/// From now on spans are kept. One trace at a time.
void start();
/// Those that have ended since, of all threads, in the order of their ends; then those that began
/// since and have not ended, as if they ended now.
std::vector<SpanRecord> stop();

/// From now on the newest kNumRecent spans are kept, those too that have not ended.
void keep_recent();
/// Them, oldest first.
std::vector<RecentSpan> recent();
/// None of those before is told any more: what follows is another run's.
void forget_recent();
/// By which others find them (SpanRing::of_process). They are kept from now on.
uint64_t recent_token();

}  // namespace lockstep::trace
