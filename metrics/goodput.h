#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/files/files.h"
#include "base/threads.h"
#include "metrics/samples.h"

/// A run's time by use, over all of its starts: training, and what was lost to each cause.
namespace lockstep::metrics {

/// Use of a second of a run. All but the first one are lost.
enum class TimeUse {
  kProductive,    ///< steps whose work counts
  kStart,         ///< from the start of the ranks to the first step
  kData,          ///< rank 0 waited for data
  kSaveStall,     ///< training waited for a save
  kEvaluation,    ///< validation during training
  kMaskUpdate,    ///< actions of the recipe
  kStraggler,     ///< one rank worked longer than the others
  kSkippedStep,   ///< updates that were not finite
  kRepeatedWork,  ///< steps after the checkpoint from which the run continued
  kHang,          ///< from the last step to the next start, after a rank hung
  kDown,          ///< the same after any other failure
  kQueue,         ///< before the first start, or after a stop on request
  kPause,         ///< `lockstep ctl pause`
  kOther,         ///< between steps: callbacks, exports, the end of the run
};
inline constexpr size_t kNumTimeUses = 14;
/// Returns "productive", "save_stall", ...
const char* name_of(TimeUse use);

using SecondsByUse = std::array<double, kNumTimeUses>;

/// Time of a whole run.
struct RunTime {
  SecondsByUse seconds{};
  int num_starts = 0;
  int64_t step = 0;  ///< updates done

  double of(TimeUse use) const { return seconds[static_cast<size_t>(use)]; }
  double wall_s() const;
  /// Productive share of the time in which the run had its ranks, without the queue. 0 to 1.
  double goodput() const;
};

/// End of a start, as far as it could tell: a killed one seems to be running.
enum class StartEnd { kRunning, kStopped, kFinished };

/// One start of a run, or the continuation after a lost rank: a line of the file.
struct StartTime {
  double end_s = 0;  ///< s since 1970: time is accounted for up to here
  int64_t first_step = 0, last_step = 0;
  StartEnd end = StartEnd::kRunning;
  /// Since the end of the start before it. Work that this start repeats is moved from productive,
  /// which may thus be negative.
  SecondsByUse seconds{};
};

/// Returns the lines of a run's goodput.csv; none if there is no such file. Throws Error(kBadData)
/// with file:line for an invalid line.
std::vector<StartTime> read_starts(const std::filesystem::path& file);
/// Returns the sums over all starts.
RunTime run_time_of(const std::vector<StartTime>& starts);
/// Returns the time as a table for people, with a bar for each use that has any.
std::string table_of(const RunTime& time);

/// Facts about a start that the launcher tells in the environment.
struct LaunchFacts {
  double began_s = 0;          ///< s since 1970: the ranks were started (LOCKSTEP_STARTED_AT)
  double queued_s = 0;         ///< the job was submitted (LOCKSTEP_QUEUED_AT); 0: not told
  bool is_after_hang = false;  ///< the last start ended with kWatchdog (LOCKSTEP_LAST_EXIT_CODE)
};
/// Reads them; the ranks began with this process if no launcher tells more.
LaunchFacts launch_facts();

/// Time of this start, written to a line of goodput.csv while the run trains, so that a killed run
/// leaves it behind. One per run, on rank 0. A separate thread writes after the start, so a disk
/// that hangs or is full delays nothing; the file is then incomplete. No fault of the file is an
/// error of the run.
class Goodput {
 public:
  using Clock = std::chrono::steady_clock;

  /// The run continues at `step` updates. Reads earlier starts from the file.
  Goodput(const std::filesystem::path& file, int64_t step, const LaunchFacts& launch);
  /// Time from now on belongs to this state.
  void enter(RunState state, Clock::time_point now = Clock::now());
  /// An update has ended. straggler_s: part of its time that ranks waited for a slow one.
  void step(const StepSample& sample, double straggler_s, Clock::time_point now = Clock::now());
  /// A save has ended, for which training waited this long.
  void save(double stall_s, Clock::time_point now = Clock::now());
  /// Training has ended without a failure.
  void end(StartEnd end, Clock::time_point now = Clock::now());
  RunTime run_time() const;

 private:
  void spend(TimeUse use, double seconds) { own_.seconds[static_cast<size_t>(use)] += seconds; }
  double take(TimeUse use, double seconds);
  void open(const std::filesystem::path& file, const std::vector<StartTime>& starts);
  void spend_until(Clock::time_point now);
  TimeUse use_now() const;
  void write(Clock::time_point now, bool is_due);

  RunTime before_;  ///< of earlier starts
  StartTime own_;
  std::shared_ptr<files::Descriptor> out_;  ///< null if the file cannot be created
  int64_t offset_bytes_ = 0;                ///< of its line
  double began_s_;                          ///< s since 1970, at began_at_
  Clock::time_point began_at_, accounted_until_, written_at_;
  RunState state_ = RunState::kInitializing;
  bool has_stepped_ = false;
  double stalled_s_ = 0;        ///< in the state kSaving since the last save() call
  SecondsByUse before_save_{};  ///< own_.seconds when the save began
  TaskQueue writer_;
};

}  // namespace lockstep::metrics
