#include "daemon/control/settable.h"

#include <fmt/format.h>

#include "base/log.h"
#include "base/yaml/config_reader.h"
#include "daemon/config/run_options.h"

// Keys that `lockstep ctl set` accepts, and their changes. A further key needs a row here and a
// line in follow() or in Run::make_changes.
namespace lockstep::daemon {
namespace {

/// Upper limits, so that later conversions and sums cannot overflow.
constexpr int64_t kMostOfAnything = 1'000'000'000;
constexpr double kMostSeconds = 1e9;

/// Returns a check for whole numbers from `least` on.
std::function<bool(const std::string&)> count_from(int64_t least) {
  return [least](const std::string& value) {
    const auto number = parse_integer(value);
    return number && *number >= least && *number <= kMostOfAnything;
  };
}

bool is_count_or_all(const std::string& value) { return value == "-1" || count_from(1)(value); }

bool is_seconds(const std::string& value) {
  const auto number = parse_number(value);
  return number && *number >= 0 && *number <= kMostSeconds;
}

bool is_some_seconds(const std::string& value) {
  return is_seconds(value) && *parse_number(value) > 0;
}

/// Adds the two limits of one section: `watchdog.` or `watchdog.PHASE.`.
void add_watchdog(const std::string& section, std::vector<Settable>* all) {
  all->push_back({section + "slow_seconds", "seconds, more than 0", is_some_seconds});
  all->push_back({section + "hang_seconds", "seconds; 0: never", is_seconds});
}

std::vector<Settable> make() {
  std::vector<Settable> all{
      {std::string(kLogLevelKey), "debug, info, warning or error",
       [](const std::string& value) { return log::level_named(value).has_value(); }},
      {std::string(kProgressKey), "seconds; 0: no progress lines", is_seconds},
      {std::string(kSaveStepsKey), "a number of steps, 1 or more", count_from(1),
       /*is_of_saves=*/true},
      {std::string(kKeepMaxKey), "a number of checkpoints, 1 or more; -1 keeps all",
       is_count_or_all,
       /*is_of_saves=*/true},
      {std::string(kEvalEpochsKey), "a number of epochs, 0 or more", count_from(0)},
      {std::string(kGraceKey), "seconds, 0 or more", is_seconds}};
  add_watchdog(std::string(kWatchdogKeys), &all);
  for (int i = 0; i < kNumWatchPhases; ++i)
    add_watchdog(fmt::format("{}{}.", kWatchdogKeys, phase_name(static_cast<WatchPhase>(i))), &all);
  return all;
}

}  // namespace

const std::vector<Settable>& settable_keys() {
  static const std::vector<Settable> all = make();
  return all;
}

// All values were checked by Settable::fits, so the conversions here cannot fail.
void follow(const Change& change, const LiveParts& parts) {
  if (change.key == kLogLevelKey)
    log::set_console_level(*log::level_named(change.value));
  else if (change.key == kProgressKey)
    parts.recorder.progress_every(std::stod(change.value));
  else if (change.key == kKeepMaxKey)
    parts.saver.keep_from_next_save(std::stoll(change.value));
  else if (change.key == kGraceKey)
    parts.end_limit.set_grace(std::stod(change.value));
  else if (change.key.starts_with(kWatchdogKeys))
    parts.watchdog.set_limit(change.key.substr(kWatchdogKeys.size()), std::stod(change.value));
}

}  // namespace lockstep::daemon
