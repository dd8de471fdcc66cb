#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/trace/trace_span.h"

/// Traces in the Trace Event Format of Chrome, which Perfetto and chrome://tracing open.
namespace lockstep::train {

/// What one rank did in a step.
struct RankTrace {
  std::string operators_json;            ///< as LibTorch's profiler saves it; empty: none
  std::vector<trace::SpanRecord> spans;  ///< of Lockstep's own
  /// Of threads whose spans have none, by the system's number.
  std::map<int64_t, std::string> thread_names = {};
};

struct TimelineOptions {
  int rank = 0;
  std::string node;
  bool show_dataflow = true;
  bool show_memory = false;
};

/// The events of a rank as a JSON list: process = rank, threads (and streams of a GPU) with their
/// names, begins in whole nanoseconds since 1970. Events of a thread lie one behind or within the
/// other: the clocks of LibTorch and Lockstep differ by some microseconds, so that an operator
/// which reaches over the begin or end of one of Lockstep's spans is cut there.
std::string rank_events(const RankTrace& trace, const TimelineOptions& options);

/// One trace of the lists of all ranks, empty texts left out: in microseconds, from 0 on;
/// baseTimeNanoseconds tells when that was.
std::string merged_timeline(const std::vector<std::string>& rank_events);

}  // namespace lockstep::train
