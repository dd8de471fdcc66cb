#pragma once

#include <array>
#include <csignal>
#include <cstdint>

namespace lockstep::train {

/// What this rank was asked for since the last step. Each is decided by all ranks together: the
/// votes travel with the step's reduction, so every rank sees them after the same step.
struct Votes {
  bool save = false;       ///< an interval has passed (rank 0 asks)
  bool stop = false;       ///< save at the next step and stop (SIGUSR1)
  bool save_done = false;  ///< the save under way has ended on this rank
  bool end = false;        ///< end now, saving only if there is time (SIGTERM, SIGINT, SIGHUP)
  bool evaluate = false;   ///< long enough since the last evaluation (rank 0 says so)
};

/// The signals that a run counts (docs/metrics.md, lockstep_signals_total). SIGUSR2 does nothing
/// else.
inline constexpr std::array kCountedSignals{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

/// Where the run loop asks for votes; the daemon's signals stand behind it.
class StopRequest {
 public:
  virtual ~StopRequest() = default;
  virtual bool stop_asked() const = 0;
  virtual bool end_asked() const = 0;
  /// How often this process has received one of kCountedSignals since the start.
  virtual int64_t num_received(int signal_number) const = 0;
};

}  // namespace lockstep::train
