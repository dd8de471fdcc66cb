#pragma once

#include <span>
#include <string>
#include <string_view>

/// Table of all series of a training process: the content of its page and of docs/metrics.md.
namespace lockstep::metrics {

struct SeriesInfo {
  enum Kind { kGauge, kCounter, kHistogram };
  enum Presence {
    kAlways,
    kLate,    ///< absent until its first value is known, or if there is none
    kNative,  ///< a histogram that only the protobuf format shows
  };

  const char* name;  ///< "lockstep_steps_total"
  Kind kind;
  const char* unit;    ///< "bytes", "s since 1970"
  const char* labels;  ///< "rank, local_rank, node"; empty: none
  Presence presence;
  const char* help;  ///< one sentence
};

/// Returns "gauge", "counter" or "histogram".
const char* kind_name(SeriesInfo::Kind kind);

/// Series of each rank, and series of the run, which only rank 0 exports.
std::span<const SeriesInfo> rank_series();
std::span<const SeriesInfo> run_series();

/// Returns a row of either table. Throws Error(kBug) for an unknown name: add a row before adding a
/// series.
const SeriesInfo& series_info(std::string_view name);

/// True if only rank 0 exports it.
bool is_run_series(std::string_view name);

/// Returns both as a Markdown table, as printed by `lockstep reference --metrics`.
std::string series_reference();

}  // namespace lockstep::metrics
