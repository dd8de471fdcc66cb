#pragma once

#include "checkpoint/save/saver.h"
#include "daemon/watch/end_limit.h"
#include "daemon/watch/watchdog.h"
#include "train/recorder.h"
#include "train/step/stop_request.h"

namespace lockstep::daemon {

/// What of a running job follows changes that do not concern the loop itself. All of it outlives
/// this.
struct LiveParts {
  checkpoint::Saver& saver;
  train::Recorder& recorder;
  Watchdog& watchdog;
  EndLimit& end_limit;
};

/// Follows one change of settable_keys() on this rank; nothing for those that the loop follows. By
/// the thread that trains, on every rank after the same step.
void follow(const train::Change& change, const LiveParts& parts);

}  // namespace lockstep::daemon
