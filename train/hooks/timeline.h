#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/trace/trace_span.h"

/// Traces in the Trace Event Format of Chrome, which Perfetto and chrome://tracing open.
namespace lockstep::train {

/// Trace of one rank in a step.
struct RankTrace {
  std::string operators_json;            ///< output of LibTorch's profiler; empty: none
  std::vector<trace::SpanRecord> spans;  ///< Lockstep's own spans
  /// Names of threads without named spans, by the system's thread number.
  std::map<int64_t, std::string> thread_names = {};
};

struct TimelineOptions {
  int rank = 0;
  std::string node;
  bool show_dataflow = true;
  bool show_memory = false;
};

/// Returns the events of a rank as a JSON list. Process = rank; threads (and streams of a GPU) have
/// names; times are in whole nanoseconds since 1970. Events of a thread are disjoint or nested. The
/// clocks of LibTorch and Lockstep differ by some microseconds. So an operator that crosses the
/// begin or end of a Lockstep span is cut there.
std::string rank_events(const RankTrace& trace, const TimelineOptions& options);

/// Merges the lists of all ranks into one trace; empty texts are skipped. Times are in
/// microseconds, from 0; baseTimeNanoseconds is the origin.
std::string merged_timeline(const std::vector<std::string>& rank_events);

}  // namespace lockstep::train
