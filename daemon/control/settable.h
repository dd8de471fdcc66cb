#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/stop_request.h"
#include "checkpoint/save/saver.h"
#include "daemon/control/signals.h"
#include "daemon/control/watchdog.h"
#include "train/recorder.h"

/// Keys that may be changed during a run, and the application of a change.
namespace lockstep::daemon {

inline constexpr std::string_view kProgressKey = "summary.progress_secs";
inline constexpr std::string_view kKeepMaxKey = "checkpoint.keep_checkpoint_max";
inline constexpr std::string_view kWatchdogKeys = "watchdog.";  ///< prefix of the watchdog's keys

/// Key that may be changed during a run. None of these keys changes the trained weights.
struct Settable {
  std::string key;
  std::string takes;  ///< "a number of steps, 1 or more"
  std::function<bool(const std::string& value)> fits;
  bool is_of_saves = false;  ///< without effect if checkpoint is off
};

/// Returns all settable keys, in the order in which they are listed for users. Run::make_changes
/// and follow() parse the accepted values again.
const std::vector<Settable>& settable_keys();

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
void follow(const Change& change, const LiveParts& parts);

}  // namespace lockstep::daemon
