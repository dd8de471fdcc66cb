#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace lockstep::daemon {

/// Access to the newest spans (base/trace/trace_span.h) of all ranks. Any rank of a host can write
/// the spans of the others on that host, even if these hang, wait or are stopped.
class RankEvents {
 public:
  /// Collective. `logs`: folder of the files.
  RankEvents(dist::Communicator& control, std::filesystem::path logs);

  /// Writes lockstep-events-<rank>.json, oldest span first, for this rank and all other readable
  /// ranks. Skips ranks whose file was written since the run began. Logs the current span of each
  /// rank, and the ranks that are not readable. These are on other hosts or have ended, so a rank
  /// on their host must write them. Never throws. Any thread.
  void write() const;
  /// Logs only the current spans of the readable ranks. Never throws. Any thread.
  void log_places() const;

 private:
  struct Rank {
    int64_t pid = 0;
    uint64_t token = 0;  ///< identifies its spans
  };
  /// Current span of each rank, for the log.
  class Places;
  std::filesystem::path path_of(size_t rank) const;
  bool is_written(size_t rank) const;
  void write_unless_another_does(size_t rank, const std::string& text) const;

  const std::filesystem::path logs_;
  const std::filesystem::file_time_type begin_;
  const size_t own_rank_;
  std::vector<Rank> ranks_;
};

}  // namespace lockstep::daemon
