#pragma once

#include <array>
#include <optional>
#include <string>

#include "base/yaml/config_reader.h"

namespace lockstep::daemon {

/// Phase of a rank's loop; each has its own time limits.
enum class WatchPhase { kInit, kStep, kEvaluation, kMaskUpdate, kSave };
inline constexpr int kNumWatchPhases = 5;
/// Returns the name in the run file: "init", "step", "evaluation", "mask_update", "save".
const char* phase_name(WatchPhase phase);

/// Section `watchdog` of the run file.
struct WatchdogOptions {
  /// Limits that a phase sets for itself.
  struct Phase {
    std::optional<double> slow_s, hang_s;
  };

  double slow_s = 60;    ///< key slow_seconds
  double hang_s = 1800;  ///< key hang_seconds; 0: never
  std::array<Phase, kNumWatchPhases> phases{};

  const Phase& of(WatchPhase phase) const { return phases[static_cast<size_t>(phase)]; }
  double slow_s_of(WatchPhase phase) const { return of(phase).slow_s.value_or(slow_s); }
  double hang_s_of(WatchPhase phase) const { return of(phase).hang_s.value_or(hang_s); }
  /// Returns the key of the phase's hang limit: "watchdog.save.hang_seconds".
  std::string hang_key_of(WatchPhase phase) const;
  /// Returns the shortest of all limits that are set.
  double shortest_s() const;
  /// Sets a key of this section: "hang_seconds" or "save.hang_seconds". The key must exist.
  void set(const std::string& key, double value_s);
};

WatchdogOptions read_watchdog_options(ConfigReader in);

}  // namespace lockstep::daemon
