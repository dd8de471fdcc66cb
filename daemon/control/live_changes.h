#pragma once

#include "checkpoint/save/saver.h"
#include "daemon/watch/end_limit.h"
#include "daemon/watch/watchdog.h"
#include "train/recorder.h"
#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// Parts of a running job that follow changes outside the training loop. All of them outlive the
/// struct.
struct LiveParts {
  checkpoint::Saver& saver;
  train::Recorder& recorder;
  Watchdog& watchdog;
  EndLimit& end_limit;
};

/// Applies one change of settable_keys() on this rank. Ignores keys that the loop itself applies.
/// The training thread calls it, on every rank after the same step.
void follow(const train::Change& change, const LiveParts& parts);

}  // namespace lockstep::daemon
