#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/step_clock.h"
#include "data/loader.h"
#include "dist/communicator.h"
#include "train/step/step_report.h"
#include "train/step/stop_request.h"

/// Steps that are skipped: waits for data that a stop ends, limits on faults, and log messages.
namespace lockstep::train {

/// Waits for a step's data. A stop request ends the wait early.
///
/// Ranks that have their data already wait in the step's reduction. So a rank without data joins
/// them without its samples. The step's sample count is then too small, and so all ranks know that
/// the step is skipped (GlobalStepStats::is_complete). Recipe actions at a step would change the
/// state. So before them the ranks ask each other.
///
/// Some training threads read the samples themselves (samples are in memory and CPUs compute, or a
/// Python data set has no workers). Then the check comes after reading.
class DataWait {
 public:
  /// All arguments outlive this. `stop` null: waits without limit. Data usually arrive within
  /// patience_s, so an early stop does not skip a step that is about to begin.
  DataWait(data::Loader& loader, dist::Communicator& control, StopRequest* stop, double patience_s)
      : loader_(loader), control_(control), stop_(stop), patience_s_(patience_s) {}

  /// Returns the next batch, or one without this rank's samples.
  data::Batch next_batch();
  /// True if a rank goes without its samples, or (`is_long`: the next work takes long) is told to
  /// stop; then the report says so. Collective.
  bool stops_here(bool is_long, StepReport* report) const;
  bool can_leave() const { return stop_ != nullptr; }
  /// True if this rank goes without its samples.
  bool has_left() const { return has_left_; }
  /// Rewinds the loader after a skipped step, so that the next step takes the same samples.
  void take_back() { loader_.go_back_to(before_); }

 private:
  bool is_told_to_stop() const { return stop_->stop_asked() || stop_->end_asked(); }

  data::Loader& loader_;
  dist::Communicator& control_;
  StopRequest* const stop_;
  const double patience_s_;
  data::SamplerPosition before_;
  bool has_left_ = false;
};

/// Counts faults in steps and ends the run if there are too many.
class StepLimits {
 public:
  /// max_nonfinite: number of skipped updates in a row that ends the run. max_damaged: most damaged
  /// samples of an epoch, over all ranks.
  StepLimits(int64_t max_nonfinite, int64_t max_damaged)
      : max_nonfinite_(max_nonfinite), max_damaged_(max_damaged) {}

  /// Resets the count of damaged samples at the first step of an epoch.
  void begin_step(const StepClock& clock);
  /// Adds damaged samples found on all ranks. Throws Error(kBadData).everywhere() above the limit.
  void add_damaged(int64_t num_samples, const StepClock& clock);

  /// Counts an update. counted: it was applied. is_excused: it was not, but the cause was handled.
  void add_update(bool counted, bool is_excused = false);
  bool too_many_nonfinite() const { return num_nonfinite_in_a_row_ >= max_nonfinite_; }
  /// Throws Error(kNonFinite).everywhere() if `too_many`, which is equal on all ranks.
  void require_finite(bool too_many, const StepClock& clock) const;

 private:
  const int64_t max_nonfinite_, max_damaged_;
  int64_t num_nonfinite_in_a_row_ = 0;
  int64_t num_damaged_of_epoch_ = 0;  // in this process
};

/// Limits messages about updates skipped because something was not finite. The first is logged at
/// once, later ones at most once a minute, with their number.
class SkippedUpdates {
 public:
  /// clock_s: seconds of a steady clock; empty: the system's.
  explicit SkippedUpdates(std::function<double()> clock_s = {});

  /// Counts a skipped update. `step`: its number, from 1. `why`: such as "the loss of rank 1 is
  /// not finite". Returns the text to log; nullopt within a minute after the last one.
  std::optional<std::string> add(int64_t step, const std::string& why);

 private:
  std::function<double()> clock_s_;
  int64_t num_skipped_ = 0;
  std::optional<double> told_at_s_;
};

}  // namespace lockstep::train
