#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace lockstep::daemon {

/// Where the newest spans (base/trace/trace_span.h) of all ranks lie, so that any rank of a host
/// writes down those of each rank there, also of one that hangs, is stopped or waits.
class RankEvents {
 public:
  /// Collective. `logs` is where files go.
  RankEvents(dist::Communicator& control, std::filesystem::path logs);

  /// Writes lockstep-events-<rank>.json, oldest span first, of this rank and of all others that can
  /// be read from here, unless a rank has done so since the run began. Logs where each of them
  /// stands and whose cannot be read: those of other hosts and of processes that have ended, which
  /// somebody on their host had to write. Never throws. Any thread.
  void write() const;
  /// Logs the same places alone, of what can be read from here. Never throws. Any thread.
  void log_places() const;

 private:
  struct Rank {
    int64_t pid = 0;
    uint64_t token = 0;  ///< of its spans
  };
  /// Where the ranks stand, as a log tells it.
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
