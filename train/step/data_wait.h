#pragma once

#include "data/loader.h"
#include "dist/communicator.h"
#include "train/step/step_report.h"
#include "train/step/stop_request.h"

namespace lockstep::train {

/// The wait for a step's data, which ends early where a run is told to stop.
///
/// The ranks that have their data wait in the step's reduction, so the one that has not joins them,
/// without its samples: these are missing in the step's count, by which all ranks know that it is
/// left out (GlobalStepStats::is_complete). Before what the recipe does at a step, which would
/// change the state, they ask each other.
///
/// Where the training thread reads the samples itself (they lie ready in memory and CPUs compute,
/// or a data set in Python without workers makes them) it looks after it has read them.
class DataWait {
 public:
  /// All outlive it. `stop` null: the wait is as long as it takes. Within patience_s data are
  /// usually there: a stop leaves no step out that is about to begin.
  DataWait(data::Loader& loader, dist::Communicator& control, StopRequest* stop, double patience_s)
      : loader_(loader), control_(control), stop_(stop), patience_s_(patience_s) {}

  /// The next batch, or one without this rank's samples.
  data::Batch next_batch();
  /// Whether a rank goes without its samples, or (`is_long`: what follows takes a while) is told to
  /// stop; then the report says so. Collective.
  bool stops_here(bool is_long, StepReport* report) const;
  bool can_leave() const { return stop_ != nullptr; }
  /// This rank goes without its samples.
  bool has_left() const { return has_left_; }
  /// The step is left out: the next one is to take the same samples.
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
