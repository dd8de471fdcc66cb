#pragma once

#include <array>
#include <csignal>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::train {

/// What this rank was asked for since the last step. Each is decided by all ranks together: the
/// votes travel with the step's reduction, so every rank sees them after the same step.
struct Votes {
  bool save = false;       ///< an interval has passed (rank 0 asks), or somebody wants a save
  bool stop = false;       ///< save at the next step and stop
  bool save_done = false;  ///< the save under way has ended on this rank
  bool end = false;        ///< end now, saving only if there is time
  bool evaluate = false;   ///< long enough since the last evaluation (rank 0 says so)
  bool pause = false;      ///< hold after this step (rank 0 asks)
  bool change = false;     ///< rank 0 has changes for all ranks
};

/// Another value for a setting of a running job.
struct Change {
  std::string key, value;
};
inline constexpr std::string_view kLogLevelKey = "log.level";
inline constexpr std::string_view kSaveStepsKey = "checkpoint.save_checkpoints_steps";
inline constexpr std::string_view kEvalEpochsKey = "eval.every_epochs";
inline constexpr std::string_view kGraceKey = "preemption.grace_seconds";

/// The signals that a run counts (docs/metrics.md, lockstep_signals_total).
inline constexpr std::array kCountedSignals{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

/// What a run was asked for from outside, by this rank's account. Any thread may ask.
class StopRequest {
 public:
  virtual ~StopRequest() = default;
  /// Which of kCountedSignals mean "save and stop, however long it takes" from now on; those that
  /// have come already count too. Until then: SIGUSR1.
  virtual void set_stop_signals(const std::vector<int>& signals) = 0;
  /// Save at the next step and stop.
  virtual bool stop_asked() const = 0;
  /// End, with a save only if there is time.
  virtual bool end_asked() const = 0;
  /// How many saves were asked for, after which training goes on.
  virtual int64_t num_saves_asked() const = 0;
  /// For a rank that others may wait for, as long as it does not get to the step's vote: what they
  /// were asked for counts here too from now on. One caller.
  virtual void listen() {}
  /// Hold between two steps.
  virtual bool pause_asked() const { return false; }
  /// Whether take_changes() has any.
  virtual bool has_changes() const { return false; }
  virtual std::vector<Change> take_changes() { return {}; }
  /// The loop says how many updates are done.
  virtual void note_step(int64_t) {}
  /// How often this process has received one of kCountedSignals since the start.
  virtual int64_t num_received(int signal_number) const = 0;
};

}  // namespace lockstep::train
