#pragma once

#include <span>
#include <string>
#include <string_view>

/// Every series of a training process: what stands on a page, and in docs/metrics.md.
namespace lockstep::metrics {

struct SeriesInfo {
  enum Kind { kGauge, kCounter, kHistogram };
  enum Presence {
    kAlways,
    kLate,  ///< absent until its first value is known, or where there is none
  };

  const char* name;  ///< "lockstep_steps_total"
  Kind kind;
  const char* unit;    ///< "bytes", "s since 1970"
  const char* labels;  ///< "rank, local_rank, node"; empty: none
  Presence presence;
  const char* help;  ///< one sentence
};

/// "gauge", "counter" or "histogram".
const char* kind_name(SeriesInfo::Kind kind);

/// Those that each rank has of itself, and those of the run, which rank 0 alone has.
std::span<const SeriesInfo> rank_series();
std::span<const SeriesInfo> run_series();

/// A row of either. Throws Error(kBug) for another name: a series begins with its row.
const SeriesInfo& series_info(std::string_view name);

/// Whether rank 0 alone has it.
bool is_run_series(std::string_view name);

/// Both as a Markdown table, as `lockstep reference --metrics` prints it.
std::string series_reference();

}  // namespace lockstep::metrics
