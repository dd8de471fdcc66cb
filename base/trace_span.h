#pragma once

#include <cstdint>
#include <vector>

/// What a process does when: spans of time by thread, for traces in the format of Chrome.
///
///   const trace::Span span("all_reduce", bucket);  // until the end of the block
///
/// Nothing is kept, and a span costs a load, unless a trace is under way.
namespace lockstep::trace {

struct SpanRecord {
  const char* name = "";             ///< a literal
  int64_t detail = -1;               ///< which bucket, for instance; -1: none
  int64_t begin_ns = 0, end_ns = 0;  ///< since 1970
  int64_t thread = 0;                ///< the system's number
};

/// Threads: any.
class Span {
 public:
  explicit Span(const char* name, int64_t detail = -1);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  SpanRecord record_;  // begin_ns is 0 where nothing is kept
};

/// From now on spans are kept. One trace at a time.
void start();
/// Those that have ended since, of all threads, in the order of their ends.
std::vector<SpanRecord> stop();

}  // namespace lockstep::trace
