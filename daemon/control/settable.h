#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/step/stop_request.h"

namespace lockstep::daemon {

inline constexpr std::string_view kProgressKey = "summary.progress_secs";
inline constexpr std::string_view kKeepMaxKey = "checkpoint.keep_checkpoint_max";
inline constexpr std::string_view kWatchdogKeys = "watchdog.";  ///< how they begin

/// A key that may be changed while a run goes on: none that decides its numbers.
struct Settable {
  std::string key;
  std::string takes;  ///< "a number of steps, 1 or more"
  std::function<bool(const std::string& value)> fits;
  bool is_of_saves = false;  ///< no use where checkpoint is off
};

/// All of them, in the order in which they are told. Values that fit are read back by those that
/// follow the change (Run::make_changes, LiveChanges).
const std::vector<Settable>& settable_keys();

}  // namespace lockstep::daemon
