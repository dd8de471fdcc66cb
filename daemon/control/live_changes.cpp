#include "daemon/control/live_changes.h"

#include <string>

#include "base/log.h"
#include "daemon/control/settable.h"

// All values were checked by Settable::fits, so the conversions here cannot fail.
namespace lockstep::daemon {

void follow(const train::Change& change, const LiveParts& parts) {
  if (change.key == train::kLogLevelKey)
    log::set_console_level(*log::level_named(change.value));
  else if (change.key == kProgressKey)
    parts.recorder.progress_every(std::stod(change.value));
  else if (change.key == kKeepMaxKey)
    parts.saver.keep_from_next_save(std::stoll(change.value));
  else if (change.key == train::kGraceKey)
    parts.end_limit.set_grace(std::stod(change.value));
  else if (change.key.starts_with(kWatchdogKeys))
    parts.watchdog.set_limit(change.key.substr(kWatchdogKeys.size()), std::stod(change.value));
}

}  // namespace lockstep::daemon
