#pragma once

#include <array>
#include <csignal>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A new value for a setting of a running job.
struct Change {
  std::string key, value;
};
inline constexpr std::string_view kLogLevelKey = "log.level";
inline constexpr std::string_view kSaveStepsKey = "checkpoint.save_checkpoints_steps";
inline constexpr std::string_view kEvalEpochsKey = "eval.every_epochs";
inline constexpr std::string_view kKillRankKey = "kill-rank";  ///< that rank's process ends
inline constexpr std::string_view kGraceKey = "preemption.grace_seconds";

/// Signals that a run counts (docs/metrics.md, lockstep_signals_total).
inline constexpr std::array kCountedSignals{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

/// Requests to a run from outside, as seen by this rank. Any thread may make them.
class StopRequest {
 public:
  virtual ~StopRequest() = default;
  /// Selects those of kCountedSignals that mean "save and stop, however long it takes"; signals
  /// already received count too. Default: SIGUSR1.
  virtual void set_stop_signals(const std::vector<int>& signals) = 0;
  /// True if the run must save at the next step and stop.
  virtual bool stop_asked() const = 0;
  /// True if the run must end, with a save only if there is time.
  virtual bool end_asked() const = 0;
  /// Number of requested saves after which training continues.
  virtual int64_t num_saves_asked() const = 0;
  /// Adopts requests that other ranks received. For a rank that others may wait for, while it does
  /// not reach the step's vote. One caller.
  virtual void listen() {}
  /// True if the run must wait between two steps.
  virtual bool pause_asked() const { return false; }
  /// True if take_changes() would return any.
  virtual bool has_changes() const { return false; }
  virtual std::vector<Change> take_changes() { return {}; }
  /// Reports the number of updates done.
  virtual void note_step(int64_t) {}
  /// Number of signals of this kind, one of kCountedSignals, that this process received since the
  /// start.
  virtual int64_t num_received(int signal_number) const = 0;
};

}  // namespace lockstep
