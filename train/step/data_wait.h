#pragma once

#include "data/loader.h"
#include "dist/communicator.h"
#include "train/step/step_report.h"
#include "train/step/stop_request.h"

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

}  // namespace lockstep::train
